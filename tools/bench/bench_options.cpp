#include "tools/bench/bench_options.h"

#include <algorithm>
#include <limits>

#include "launcher/command_line/flag_values.h"
#include "launcher/command_line/split_arguments.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/nearest_name.h"
#include "lockstep/base/internal/text.h"

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
       lockstep bench launch [flags]

all-reduce times the sum of a float32 tensor over all ranks of this machine, for each backend, and for the
memory bandwidth that limits it. It checks every result exactly, and alternates between backends.
launch times the launcher beside torchrun; lockstep bench launch --help lists its flags.

Flags of all-reduce:
  --nproc-per-node=N     number of ranks (default 2), one on each processor while there are enough
  --backends=NAME,...    backends to compare (default shm,gloo); ratios are to gloo, or to the last
  --sizes=BYTES,...      tensor sizes (default 4 B to 128 MiB, with 46758048: the gradients of ResNet-18)
  --memory=KIND,...      shared: tensors that the backend allocates; private: ordinary ones (default shared)
  --fresh                each rank writes its tensor before each call, as a backward pass does
  --rounds=N             repetitions (default 9)
  --sample-ms=N          ms for a backend and size in a round (default 20, at least three calls)
  --json[=FILE]          write all figures to a file; without FILE print them instead of the table
  -h, --help             show this text

Columns: us is the median time of a call on the slowest rank, in us; x the speed relative to gloo; kernel the
same sum without synchronization; copy and add STREAM's kernels on each rank.

Exit code: 0; 1 for a wrong sum or a failed rank; 2 for a wrong command line.

Examples:
  lockstep bench all-reduce --nproc-per-node=4 --sizes=4,65536,1048576
  lockstep bench all-reduce --json=results.json && bench/plot.py results.json -o all_reduce.svg
)";
}

}  // namespace lockstep::inline internal
