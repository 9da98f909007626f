#include "tools/bench/bench_options.h"

#include <algorithm>
#include <limits>

#include "launcher/command_line/flag_values.h"
#include "launcher/command_line/split_arguments.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/comma_list.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/nearest_name.h"

namespace lockstep::inline internal {
namespace {

constexpr const char* kBenchmark = "all-reduce";
constexpr std::int64_t kMostRanks = 1024;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;
constexpr std::int64_t kMostRounds = 10'000;
constexpr std::int64_t kMostSampleMs = 60'000;

std::vector<std::string> list_of(const char* flag, const std::string& text) {
  std::vector<std::string> items;
  for (const std::string& item : comma_list(text + ",")) {
    if (item.empty()) {
      throw UsageError(concat(flag, "='", text, "': give names with single commas between them"));
    }
    if (std::find(items.begin(), items.end(), item) != items.end()) {
      throw UsageError(concat(flag, "='", text, "' names ", item, " twice"));
    }
    items.push_back(item);
  }
  return items;
}

std::vector<std::int64_t> sizes_of(const std::string& text) {
  std::vector<std::int64_t> sizes;
  for (const std::string& item : list_of("--sizes", text)) {
    const std::int64_t bytes = integer_of("--sizes", item, 4, kMostBytes);
    if (bytes % 4 != 0) {
      throw UsageError(
          concat("--sizes='", item, "': the numbers are float32, so give a multiple of 4 bytes"));
    }
    sizes.push_back(bytes);
  }
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

std::vector<BenchMemory> memory_of(const std::string& text) {
  std::vector<BenchMemory> kinds;
  for (const std::string& item : list_of("--memory", text)) {
    if (item == bench_memory_name(BenchMemory::kShared)) {
      kinds.push_back(BenchMemory::kShared);
    } else if (item == bench_memory_name(BenchMemory::kPrivate)) {
      kinds.push_back(BenchMemory::kPrivate);
    } else {
      throw UsageError(concat("--memory='", item, "': choose shared, private or shared,private"));
    }
  }
  return kinds;
}

// "--json" that ends the line or comes before another flag means stdout.
std::vector<std::string> with_json_target(std::vector<std::string> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool bare = arguments[i] == "--json" &&
                      (i + 1 == arguments.size() || arguments[i + 1].starts_with("--"));
    if (bare) arguments[i] = "--json=-";
  }
  return arguments;
}

void take(BenchOptions& options, const std::string& name, const std::string& value) {
  if (name == "help") {
    options.help = true;
  } else if (name == "nproc-per-node") {
    options.nproc_per_node = static_cast<int>(integer_of("--nproc-per-node", value, 2, kMostRanks));
  } else if (name == "backends") {
    options.backends = list_of("--backends", value);
  } else if (name == "sizes") {
    options.sizes = sizes_of(value);
  } else if (name == "memory") {
    options.memory = memory_of(value);
  } else if (name == "fresh") {
    options.fresh = true;
  } else if (name == "rounds") {
    options.rounds = static_cast<int>(integer_of("--rounds", value, 1, kMostRounds));
  } else if (name == "sample-ms") {
    options.sample_ms = static_cast<int>(integer_of("--sample-ms", value, 1, kMostSampleMs));
  } else if (name == "json") {
    options.json = value;
  }
}

bool asks_for_help(const std::string& argument) {
  return argument == "--help" || argument == "-h" || argument == "help";
}

}  // namespace

const char* bench_memory_name(BenchMemory memory) {
  return memory == BenchMemory::kShared ? "shared" : "private";
}

BenchOptions parse_bench_options(const std::vector<std::string>& arguments) {
  BenchOptions options;
  if (arguments.empty()) {
    throw UsageError("no benchmark given; as in: lockstep bench all-reduce --nproc-per-node=2");
  }
  if (asks_for_help(arguments.front())) {
    options.help = true;
    return options;
  }
  if (arguments.front() != kBenchmark) {
    throw UsageError(concat("there is no benchmark '", arguments.front(), "'",
                            did_you_mean(arguments.front(), {kBenchmark, kLaunchBenchmark}),
                            "; as in: lockstep bench all-reduce --nproc-per-node=2"));
  }
  const SplitArguments split =
      split_arguments(with_json_target({arguments.begin() + 1, arguments.end()}),
                      {{.name = "help", .letter = 'h'},
                       {.name = "nproc-per-node", .takes_value = true},
                       {.name = "backends", .takes_value = true},
                       {.name = "sizes", .takes_value = true},
                       {.name = "memory", .takes_value = true},
                       {.name = "fresh"},
                       {.name = "rounds", .takes_value = true},
                       {.name = "sample-ms", .takes_value = true},
                       {.name = "json", .takes_value = true}});
  if (!split.program.empty()) {
    throw UsageError(concat("lockstep bench all-reduce takes flags only, but has '",
                            split.program.front(), "'; --help lists them"));
  }
  for (const std::string& flag : split.flags) {
    const auto [name, value] = name_and_value(flag);
    take(options, name, value);
  }
  return options;
}

const char* bench_help() {
  return R"(Usage: lockstep bench all-reduce [flags]
       lockstep bench launch [flags]   the launcher beside torchrun; --help lists its flags

Times the sum of a tensor over all ranks of this machine, as each backend does it, beside what the
machine itself allows. All is measured in one run, in turns, because two processors may share a cache
at one moment and not at the next: how far apart they are is measured before and after each sample,
and times are compared only where both were near, or both far. Every result is checked exactly first.

Flags:
  --nproc-per-node=N     ranks (default 2); one on each processor while there are enough
  --backends=NAME,...    what to measure (default shm,gloo); ratios are against gloo, where it is
                         among them, else against the last
  --sizes=BYTES,...      of a tensor of float32 (default 4,4096,65536,1048576,4194304,46758048,
                         134217728; 46758048 is the gradients of ResNet-18)
  --memory=KIND,...      shared: tensors that the backend allocates, which it sums in place; private:
                         ordinary ones (default shared; backends that allocate none have private
                         ones only)
  --fresh                each rank writes its tensor before each call, as a backward pass does: the
                         numbers then lie in its own cache, and short calls hold the wait for the
                         slower writer
  --rounds=N             turns (default 9): more take longer and vary less
  --sample-ms=N          time of one backend and size in one turn (default 20, but three calls)
  --json[=FILE]          all figures for machines: to a file, or to stdout instead of the table
  -h, --help             this text

What the columns mean:
  us       median over all calls of the time of one call, on the slowest rank
  x        how many times faster than gloo
  kernel   the limit: the same arithmetic with no synchronisation at all, each rank summing its part
  copy     each rank copies its part once, as STREAM does
  add      each rank adds its parts of two buffers into a third, as STREAM does

Exit code: 0, 2 for a wrong command line, 1 for a wrong sum or a failed rank.

Examples:
  lockstep bench all-reduce
  lockstep bench all-reduce --nproc-per-node=4 --backends=shm,gloo --sizes=4,65536,1048576
  lockstep bench all-reduce --memory=shared,private --json=results.json
  bench/plot.py results.json -o all_reduce.svg
)";
}

}  // namespace lockstep::inline internal
