#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/os/machine/core_distance.h"

/// What a run of `lockstep bench all-reduce` found. Pure values; no LibTorch.
namespace lockstep::bench {

/// What was timed: a backend with a kind of memory, or a limit of the machine.
struct Subject {
  std::string name;
  std::string memory;
  bool is_limit = false;
  /// Bytes that all cores together read and write for each byte of the tensor; 0: not meaningful.
  double traffic = 0;
};

/// One subject at one size in one turn.
struct Sample {
  std::size_t subject = 0;
  std::int64_t bytes = 0;
  Placement before = Placement::kUnknown;
  Placement after = Placement::kUnknown;
  std::vector<double> call_us{};  ///< of the slowest rank
};

/// All samples of one subject and size that were taken with the same placement on processors.
struct Row {
  Subject subject;
  std::int64_t bytes = 0;
  std::string placement;  ///< "near", "far", "mixed" (changed meanwhile) or "unknown"
  std::size_t calls = 0;
  double us = 0;  ///< median
  double us_min = 0;
  double us_p90 = 0;
  /// How many times faster than the baseline at this size and placement.
  std::optional<double> speedup{};
  /// The kernel's time divided by this one: 1 is the limit.
  std::optional<double> share_of_kernel{};
  std::optional<double> gb_per_s{};
};

struct Report {
  int ranks = 0;
  int cpus = 0;
  bool fresh = false;  ///< tensors were written anew before each call
  std::string cpu_model{};
  std::string libtorch{};
  std::string baseline{};
  double seconds = 0;
  /// Smallest and largest round trip between two ranks' processors; 0 where unknown.
  double round_trip_ns_min = 0;
  double round_trip_ns_max = 0;
  std::vector<Row> rows{};
};

inline constexpr const char* kKernel = "kernel";

/// "near" when both are near, and so on; "mixed" when they differ.
std::string placement_label(Placement before, Placement after);

/// Groups samples by subject, size and label, in that order of sizes and subjects.
/// Ratios are within a label only.
std::vector<Row> make_rows(const std::vector<Subject>& subjects, const std::vector<Sample>& samples,
                           const std::string& baseline);

/// The backend that others are compared with: gloo where it is among them, else the last.
std::string choose_baseline(const std::vector<std::string>& backends);

}  // namespace lockstep::bench
