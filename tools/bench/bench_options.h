#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// The benchmark of the launcher, which is a script with flags of its own: bench/launch/run.py.
inline constexpr const char* kLaunchBenchmark = "launch";

/// Where the tensors of a benchmark lie.
enum class BenchMemory {
  kShared,   ///< what the backend itself allocates; ordinary memory for backends that allocate none
  kPrivate,  ///< ordinary memory, whatever the backend
};

/// What `lockstep bench all-reduce` measures. Read by the command and by the ranks that it starts.
struct BenchOptions {
  int nproc_per_node = 2;
  /// The last is what the others are compared with, unless there is gloo.
  std::vector<std::string> backends{"shm", "gloo"};
  /// Bytes of a tensor of float32; 46758048 are the gradients of ResNet-18.
  std::vector<std::int64_t> sizes{4, 4096, 65536, 1 << 20, 4 << 20, 46'758'048, 128 << 20};
  std::vector<BenchMemory> memory{BenchMemory::kShared};
  /// Each rank writes its tensor anew before each call, as a backward pass does.
  bool fresh = false;
  int rounds = 9;
  int sample_ms = 20;
  /// A file, "-" for stdout, empty for none.
  std::string json{};
  bool help = false;
};

/// "shared", "private".
const char* bench_memory_name(BenchMemory memory);

/// Reads what follows `lockstep bench`. Errors: UsageError, one line that names the flag.
BenchOptions parse_bench_options(const std::vector<std::string>& arguments);

/// What `lockstep bench --help` shows.
const char* bench_help();

}  // namespace lockstep::inline internal
