// The differential fuzzer of data-parallel training, run by `lockstep run` with 1 to 4 ranks:
// trains by plans that seeds stand for, and compares every gradient and parameter with one
// process's. docs/fuzzing.md.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/program/run_main.h"
#include "tests/fuzz/differential/arguments.h"
#include "tests/fuzz/differential/cuts.h"
#include "tests/fuzz/differential/draw.h"
#include "tests/fuzz/differential/groups.h"
#include "tests/fuzz/differential/program.h"
#include "tests/fuzz/differential/run.h"
#include "tests/fuzz/differential/shards.h"
#include "tests/fuzz/differential/shrink.h"

namespace lockstep::differential {
namespace {

Plan plan_of(std::uint64_t seed, const Arguments& arguments,
             const std::vector<std::size_t>& cut_numbers) {
  const int ranks = arguments.ranks;
  Plan plan = arguments.in_shards  ? draw_in_shards(seed)
              : arguments.in_units ? draw_in_units(seed, ranks)
                                   : draw(seed, ranks);
  for (const std::size_t number : cut_numbers) {
    const std::vector<Plan> simpler = cuts(plan);
    if (number >= simpler.size()) {
      throw UsageError(concat("differential: --cuts: seed ", seed, " of ", ranks,
                              " ranks has no cut ", number, " there, only ", simpler.size(),
                              "; give the numbers that --shrink wrote for this seed"));
    }
    plan = simpler[number];
  }
  return plan;
}

void note(const Arguments& arguments, int rank, std::uint64_t number) {
  if (arguments.progress.empty() || rank != 0) return;
  std::ofstream(arguments.progress) << number << std::endl;
}

// Whether it failed on any rank; each says what it saw.
bool fails(const Plan& plan, Groups& groups, const std::string& name) {
  const ProcessGroup& group = groups.get(plan.backend);
  Failure failure;
  try {
    failure = plan.shards > 0 ? run_in_shards(plan, group) : run(plan, group);
  } catch (const std::exception& error) {
    std::cout << concat(name, ": rank ", group.rank(), ": ", error.what(), "\n") << std::flush;
    throw;
  }
  if (failure) {
    std::cout << concat(name, ": rank ", group.rank(), ", ", failure.where, ": ", failure.what,
                        "\n")
              << std::flush;
  }
  const at::Tensor any = at::full({1}, failure ? 1 : 0, at::kLong);
  groups.witness().all_reduce(any, {.op = ReduceOp::kMax});
  return any.item<std::int64_t>() != 0;
}

int probe(const Arguments& arguments) {
  Groups groups;
  const std::vector<Plan> candidates =
      cuts(plan_of(arguments.seeds.front(), arguments, arguments.cuts));
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    note(arguments, groups.witness().rank(), i);
    if (fails(candidates[i], groups, concat("cut ", i))) return 1;
  }
  return 0;
}

int run_seeds(const Arguments& arguments) {
  Groups groups;
  int failed = 0;
  for (const std::uint64_t seed : arguments.seeds) {
    note(arguments, groups.witness().rank(), seed);
    const Plan plan = plan_of(seed, arguments, arguments.cuts);
    const std::string name = concat("seed ", seed, " of ", arguments.ranks, " ranks");
    if (fails(plan, groups, name)) ++failed;
    if (failed > 0 && arguments.stops) break;
  }
  if (groups.witness().rank() == 0) {
    std::cout << concat(arguments.seeds.size(), " seeds, ", failed, " failed\n") << std::flush;
  }
  return failed > 0 ? 1 : 0;
}

// A program is one of ranks that exchange; shards are described.
std::string text_of(const Plan& plan, bool as_program) {
  return as_program && plan.shards == 0 ? program(plan) : describe(plan);
}

int run_program(int argc, char** argv) {
  const Arguments arguments = parse_arguments(argc, argv);
  if (arguments.prints || arguments.prints_program) {
    for (const std::uint64_t seed : arguments.seeds) {
      std::cout << text_of(plan_of(seed, arguments, arguments.cuts), arguments.prints_program)
                << std::flush;
    }
    return 0;
  }
  if (!arguments.shrinks_with.empty()) {
    const std::vector<std::size_t> found =
        shrink(arguments.shrinks_with,
               concat(argv[0], arguments.in_shards ? " --shards" : "",
                      arguments.in_units ? " --units" : ""),
               arguments.seeds.front(), arguments.ranks);
    std::cout << text_of(plan_of(arguments.seeds.front(), arguments, found), true) << std::flush;
    return 0;
  }
  init_process_group({.timeout = std::chrono::seconds(30)});
  const int status = arguments.probes ? probe(arguments) : run_seeds(arguments);
  destroy_process_group();
  return status;
}

}  // namespace
}  // namespace lockstep::differential

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return lockstep::differential::run_program(argc, argv); });
}
