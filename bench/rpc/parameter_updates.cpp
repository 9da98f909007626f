// Updates by parameter servers beside an all-reduce of the same bytes: the first ranks are servers,
// the others trainers. A step hands in gradients, and has the new parameters in the end; in its
// turn trainers average the same gradients among them, and each makes the update itself.
//
//   lockstep run --standalone --nproc-per-node=3 parameter_updates [--servers=1]
#include <algorithm>
#include <chrono>
#include <iostream>
#include <numeric>

#include <ATen/ATen.h>
#include <CLI/CLI.hpp>
#include <torch/optim/sgd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/parameter_server/internal/calls.h"
#include "lockstep/parameter_server/training.h"
#include "lockstep/program/run_main.h"

namespace lockstep::bench::parameter_updates {
namespace {

namespace ps = lockstep::parameter_server;
using Clock = std::chrono::steady_clock;

struct Arguments {
  int servers = 1;
  int turns = 5;
  std::vector<std::int64_t> sizes{1 << 10, 1 << 20, 16 << 20};
};

// Steps a turn: about as much time for each size.
int steps_of(std::int64_t size_bytes) {
  return static_cast<int>(std::clamp<std::int64_t>((32 << 20) / size_bytes, 4, 200));
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

template <class Step>
double time_us(int steps, Step&& step) {
  const auto begin = Clock::now();
  for (int i = 0; i < steps; ++i) step();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / steps;
}

void measure(const lockstep::ProcessGroup& group, const Arguments& arguments, std::int64_t size) {
  const int trainers = group.world_size() - arguments.servers;
  std::vector<int> server_ranks(static_cast<std::size_t>(arguments.servers));
  std::iota(server_ranks.begin(), server_ranks.end(), 0);
  std::vector<int> trainer_ranks(static_cast<std::size_t>(trainers));
  std::iota(trainer_ranks.begin(), trainer_ranks.end(), arguments.servers);
  const auto trainers_group = group.new_group(trainer_ranks);

  const auto parameter = at::ones({size / 4}).requires_grad_();
  parameter.mutable_grad() = at::full({size / 4}, 1e-6);
  const auto sgd = [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.01);
  };
  const ps::Parts parts{.parameters = {parameter}, .optimizer = sgd};
  std::optional<ps::Shard> shard;
  std::shared_ptr<ps::ParameterServer> desk;
  const bool is_server = group.rank() < arguments.servers;
  if (is_server) {
    shard.emplace(parts, group.rank(), arguments.servers);
    desk = std::make_shared<ps::ParameterServer>(
        *shard, ps::UpdateRules{}, std::vector<std::int64_t>(static_cast<std::size_t>(trainers)));
  }
  const ps::ServedCalls calls(desk);
  const auto session = lockstep::rpc::init(lockstep::concat("rank", group.rank()), group);
  if (!is_server) {
    ps::ParameterClient client(parts, server_ranks, group.rank() - arguments.servers, trainers);
    std::int64_t step = 0;
    client.pull(step);
    const auto by_servers = [&] {
      client.push(step);
      client.pull(++step);
    };
    const auto optimizer = sgd({parameter});
    const auto by_all = [&] {
      trainers_group.all_reduce(parameter.mutable_grad(), {.op = lockstep::ReduceOp::kAvg});
      optimizer->step();
    };
    std::vector<double> of_servers;
    std::vector<double> of_all;
    const int steps = steps_of(size);
    for (int turn = 0; turn <= arguments.turns; ++turn) {  // The first warms up.
      of_servers.push_back(time_us(steps, by_servers));
      of_all.push_back(time_us(steps, by_all));
    }
    of_servers.erase(of_servers.begin());
    of_all.erase(of_all.begin());
    if (client.trainer() == 0) {
      std::cout << size << " bytes: " << static_cast<int>(1e6 / median(of_servers))
                << " updates/s by servers (" << static_cast<int>(median(of_servers)) << " us), "
                << static_cast<int>(1e6 / median(of_all)) << " by an all-reduce ("
                << static_cast<int>(median(of_all)) << " us)" << std::endl;
    }
  }
  group.barrier();
  lockstep::rpc::shutdown();
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_main([&] {
    Arguments arguments;
    CLI::App app("Updates by parameter servers beside an all-reduce of the same bytes");
    app.option_defaults()->always_capture_default();
    app.add_option("--servers", arguments.servers, "so many of the ranks are servers")
        ->check(CLI::PositiveNumber);
    app.add_option("--turns", arguments.turns, "of each kind")->check(CLI::PositiveNumber);
    app.add_option("--bytes", arguments.sizes, "of all parameters")
        ->delimiter(',')
        ->check(CLI::Range(std::int64_t{4}, std::int64_t{1} << 32));
    CLI11_PARSE(app, argc, argv);
    const auto group = init_process_group();
    if (group.world_size() <= arguments.servers) {
      throw UsageError(concat("parameter_updates: ", arguments.servers, " servers of ",
                              group.world_size(), " ranks leave no trainer; start more ranks"));
    }
    for (const std::int64_t size : arguments.sizes) measure(group, arguments, size);
    return 0;
  });
}

}  // namespace lockstep::bench::parameter_updates
