// One worker of a large job fails: what the change of the membership costs, in virtual time.
#include <cstdio>

#include <gtest/gtest.h>

#include "launcher/supervise/simulated_job.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

struct Cost {
  double time_ms = 0;
  double to_server_per_machine = 0;
  double from_server_per_machine = 0;
  std::uint64_t most_to_one_machine = 0;
};

Cost cost_of_failure(int machines) {
  SimulatedOptions options{.machines = machines, .workers_per_machine = 8};
  options.rules = {.min_nodes = machines, .max_nodes = machines, .max_restarts = 1};
  options.training = std::chrono::hours(10);
  SimulatedJob job(options);
  const auto runs_in = [&](std::uint64_t generation) {
    return [&job, generation] {
      return job.rendezvous().generation == generation && job.all_ranks_train();
    };
  };
  const auto soon = [&] { return job.clock().now() + std::chrono::minutes(5); };
  EXPECT_TRUE(job.run_until(soon(), runs_in(1))) << job.violation();
  job.forget_messages();
  const auto start = job.clock().now();
  job.kill_worker(machines - 1, 3);
  EXPECT_TRUE(job.run_until(soon(), runs_in(2))) << job.violation();
  EXPECT_EQ(job.violation(), "");
  const SimulatedJob::Messages messages = job.messages();
  return {.time_ms = std::chrono::duration<double, std::milli>(job.clock().now() - start).count(),
          .to_server_per_machine = static_cast<double>(messages.to_server) / machines,
          .from_server_per_machine = static_cast<double>(messages.from_server) / machines,
          .most_to_one_machine = messages.most_to_one_machine};
}

TEST(SupervisionScale, AMembershipChangeCostsTheSameForEachMachine) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kMost = 128;
#else
  constexpr int kMost = 1'000;
#endif
  const Cost small = cost_of_failure(2);
  std::printf("machines  ranks  time ms  to server/machine  from server/machine\n");
  for (const int machines : {2, 16, 128, 1'000}) {
    if (machines > kMost) break;
    const Cost cost = cost_of_failure(machines);
    std::printf("%8d %6d %8.1f %18.2f %20.2f\n", machines, machines * 8, cost.time_ms,
                cost.to_server_per_machine, cost.from_server_per_machine);
    EXPECT_LE(cost.to_server_per_machine, small.to_server_per_machine + 1);
    EXPECT_LE(cost.from_server_per_machine, small.from_server_per_machine + 1);
    EXPECT_LE(cost.most_to_one_machine, small.most_to_one_machine + 1);
    EXPECT_LE(cost.time_ms - small.time_ms, 1.0 * machines) << "1 ms for each machine";
  }
}

}  // namespace
}  // namespace lockstep
