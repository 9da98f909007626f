#include "tools/bench/bench_options.h"

#include <algorithm>
#include <limits>

#include "launcher/command_line/flag_values.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"
#include "tools/parse_flags.h"

namespace lockstep::inline internal {
namespace {

constexpr const char* kBenchmark = "all-reduce";
constexpr int kMostRanks = 1024;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;
constexpr int kMostRounds = 10'000;
constexpr int kMostSampleMs = 60'000;

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

}  // namespace

const char* bench_memory_name(BenchMemory memory) {
  return memory == BenchMemory::kShared ? "shared" : "private";
}

std::optional<BenchOptions> parse_bench_options(const std::vector<std::string>& arguments) {
  BenchOptions options;
  CLI::App app(
      "Times collectives, or the launcher. The wheel has no benchmark of the launcher: build "
      "Lockstep from source.",
      "lockstep bench");
  CLI::App* const all_reduce = app.add_subcommand(
      kBenchmark,
      "times the all-reduce of a float32 tensor over the ranks of this machine, for each backend, "
      "and measures the memory bandwidth that limits it");
  app.add_subcommand(kLaunchBenchmark,
                     "times the launcher beside torchrun; lockstep bench launch --help lists its "
                     "flags");
  const auto add = [&](const char* flag, const char* type, const char* help, auto take) {
    return all_reduce->add_option_function<std::string>(flag, take, help)->option_text(type);
  };
  const auto add_count = [&](const char* flag, int& value, int least, int most, const char* help) {
    add(flag, "N", help, [&value, flag, least, most](const std::string& text) {
      value = static_cast<int>(integer_of(flag, text, least, most));
    });
  };
  add_count("--nproc-per-node", options.nproc_per_node, 2, kMostRanks,
            "number of ranks (default 2), each on its own processor if there are enough");
  add("--backends", "NAME,...",
      "backends to compare (default shm,gloo); speeds relative to gloo, or to the last\n"
      "backend if gloo is not listed",
      [&](const std::string& text) { options.backends = list_of("--backends", text); });
  add("--sizes", "BYTES,...",
      "tensor sizes (default 4 B to 128 MiB, with 46758048: the gradients of ResNet-18)",
      [&](const std::string& text) { options.sizes = sizes_of(text); });
  add("--memory", "KIND,...",
      "shared: tensors that the backend allocates; private: ordinary ones (default shared)",
      [&](const std::string& text) { options.memory = memory_of(text); });
  all_reduce->add_flag("--fresh", options.fresh,
                       "each rank writes its tensor before each call, as a backward pass does");
  add_count("--rounds", options.rounds, 1, kMostRounds, "repetitions (default 9)");
  add_count("--sample-ms", options.sample_ms, 1, kMostSampleMs,
            "ms per backend and size in each round (default 20, at least three calls)");
  add("--json", "[FILE]",
      "write all figures to a file; without FILE print them instead of the table",
      [&](const std::string& text) { options.json = text.empty() ? "-" : text; })
      ->expected(0, 1);
  app.footer(
      "Examples:\n"
      "  lockstep bench all-reduce --nproc-per-node=4 --sizes=4,65536,1048576\n"
      "  lockstep bench all-reduce --json=results.json && bench/plot.py results.json -o a.svg");
  all_reduce->footer(
      "Checks every result exactly, and alternates between backends.\n\n"
      "Columns:\n"
      "  us      median time of a call on the slowest rank\n"
      "  x       speed relative to gloo, or to the last backend\n"
      "  kernel  the same sum without synchronization\n"
      "  copy    STREAM's copy on each rank\n"
      "  add     STREAM's add on each rank\n\n"
      "Exit code: 0; 1 for a wrong sum or a failed rank; 2 for a wrong command line.");
  if (!parse_flags(app, arguments)) return std::nullopt;
  return options;
}

}  // namespace lockstep::inline internal
