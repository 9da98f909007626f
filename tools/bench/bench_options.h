#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// The benchmark of the launcher, which is a script with flags of its own: bench/launch/run.py.
inline constexpr const char* kLaunchBenchmark = "launch";

/// The memory of the tensors.
enum class BenchMemory {
  kShared,   ///< allocated by the backend; ordinary memory for backends that allocate none
  kPrivate,  ///< ordinary memory, whatever the backend
};

/// The command line of `lockstep bench all-reduce`, which the command and its ranks parse.
struct BenchOptions {
  int nproc_per_node = 2;
  /// The reference is gloo, or else the last.
  std::vector<std::string> backends{"shm", "gloo"};
  /// Bytes of a float32 tensor; 46758048 are the gradients of ResNet-18.
  std::vector<std::int64_t> sizes{4, 4096, 65536, 1 << 20, 4 << 20, 46'758'048, 128 << 20};
  std::vector<BenchMemory> memory{BenchMemory::kShared};
  /// Each rank writes its tensor before each call, as a backward pass does.
  bool fresh = false;
  int rounds = 9;
  int sample_ms = 20;
  /// A file, "-" for stdout, empty for none.
  std::string json{};
};

/// "shared", "private".
const char* bench_memory_name(BenchMemory memory);

/// Parses the words after `lockstep bench`. Nothing where --help was given, which is printed.
/// Errors: UsageError, one line that names the flag.
std::optional<BenchOptions> parse_bench_options(const std::vector<std::string>& arguments);

}  // namespace lockstep::inline internal
