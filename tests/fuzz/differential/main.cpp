// The differential fuzzer of data-parallel training, run by `lockstep run` with 1 to 4 ranks:
// trains by plans that seeds stand for, and compares every gradient and parameter with one
// process's. docs/fuzzing.md.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/run_main.h"
#include "lockstep/comm/init_process_group.h"
#include "tests/fuzz/differential/cuts.h"
#include "tests/fuzz/differential/draw.h"
#include "tests/fuzz/differential/groups.h"
#include "tests/fuzz/differential/program.h"
#include "tests/fuzz/differential/run.h"
#include "tests/fuzz/differential/shrink.h"

namespace lockstep::differential {
namespace {

struct Arguments {
  std::vector<std::uint64_t> seeds;
  std::vector<std::size_t> cuts;  ///< applied to the plan, one after the other
  std::string progress;           ///< a file that says which seed or cut runs
  std::string shrinks_with;       ///< the command `lockstep`
  int ranks = 0;                  ///< where no launcher says it
  bool prints = false;
  bool prints_program = false;
  bool stops = false;   ///< at the first seed that fails
  bool probes = false;  ///< tries every cut of the plan, up to the first that fails
};

std::vector<std::size_t> numbers(const std::string& text) {
  std::vector<std::size_t> result;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) result.push_back(std::stoul(item));
  return result;
}

void add_seeds(const std::string& value, std::vector<std::uint64_t>& seeds) {
  const auto colon = value.find(':');
  const std::uint64_t first = std::stoull(value);
  const std::uint64_t count = colon == std::string::npos ? 1 : std::stoull(value.substr(colon + 1));
  for (std::uint64_t i = 0; i < count; ++i) seeds.push_back(first + i);
}

// Lines "<ranks> <seed>"; # begins a remark.
void add_kept_seeds(const std::string& path, int ranks, std::vector<std::uint64_t>& seeds) {
  std::ifstream file(path);
  if (!file) throw UsageError(concat("differential: cannot read ", path));
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    int of_ranks = 0;
    std::uint64_t seed = 0;
    if (words >> of_ranks >> seed && of_ranks == ranks) seeds.push_back(seed);
  }
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  arguments.ranks = static_cast<int>(env::integer(env::kWorldSize).value_or(1));
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const auto equals = argument.find('=');
    const std::string_view flag = argument.substr(0, equals);
    const std::string value(equals == std::string_view::npos ? "" : argument.substr(equals + 1));
    if (flag == "--seed" || flag == "--seeds") {
      add_seeds(value, arguments.seeds);
    } else if (flag == "--kept") {
      add_kept_seeds(value, arguments.ranks, arguments.seeds);
    } else if (flag == "--cuts") {
      arguments.cuts = numbers(value);
    } else if (flag == "--progress") {
      arguments.progress = value;
    } else if (flag == "--shrink") {
      arguments.shrinks_with = value;
    } else if (flag == "--ranks") {
      arguments.ranks = std::stoi(value);
    } else if (flag == "--print") {
      arguments.prints = true;
    } else if (flag == "--until-failure") {
      arguments.stops = true;
    } else if (flag == "--program") {
      arguments.prints_program = true;
    } else if (flag == "--probe") {
      arguments.probes = true;
    } else {
      throw UsageError(concat("differential: unknown argument ", argument));
    }
  }
  return arguments;
}

Plan plan_of(std::uint64_t seed, int ranks, const std::vector<std::size_t>& numbers) {
  Plan plan = draw(seed, ranks);
  for (const std::size_t number : numbers) plan = cuts(plan).at(number);
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
    failure = run(plan, group);
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
      cuts(plan_of(arguments.seeds.at(0), arguments.ranks, arguments.cuts));
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
    const Plan plan = plan_of(seed, arguments.ranks, arguments.cuts);
    const std::string name = concat("seed ", seed, " of ", arguments.ranks, " ranks");
    if (fails(plan, groups, name)) ++failed;
    if (failed > 0 && arguments.stops) break;
  }
  if (groups.witness().rank() == 0) {
    std::cout << concat(arguments.seeds.size(), " seeds, ", failed, " failed\n") << std::flush;
  }
  return failed > 0 ? 1 : 0;
}

int run_program(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  if (arguments.prints || arguments.prints_program) {
    for (const std::uint64_t seed : arguments.seeds) {
      const Plan plan = plan_of(seed, arguments.ranks, arguments.cuts);
      std::cout << (arguments.prints_program ? program(plan) : describe(plan)) << std::flush;
    }
    return 0;
  }
  if (!arguments.shrinks_with.empty()) {
    const std::vector<std::size_t> found =
        shrink(arguments.shrinks_with, argv[0], arguments.seeds.at(0), arguments.ranks);
    std::cout << program(plan_of(arguments.seeds[0], arguments.ranks, found)) << std::flush;
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
