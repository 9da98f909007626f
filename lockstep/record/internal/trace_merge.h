#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// Profiler range around each barrier by which clocks are compared.
inline constexpr const char* kClockSpan = "lockstep::clock";

struct MergedTrace {
  std::vector<int> ranks = {};
  std::int64_t events = 0;
  /// Largest correction of a rank's clock to rank 0's.
  double largest_shift_us = 0;
};

/// Merges the traces of a job's ranks, written by lockstep::Trace or PyTorch's profiler, into one
/// timeline for ui.perfetto.dev and chrome://tracing. A rank is a process, named "rank 1" and
/// labelled with its machine; each of its CUDA devices is another. Times are in µs from the
/// earliest event.
///
/// Each rank's times are by its machine's clock. If the traces have the barriers of a TraceCallback
/// (kClockSpan), clocks of different machines are corrected by them (clock_shift_us), to about ten
/// µs, half of a barrier's time. Else they stay as they are.
///
/// `path` has either the whole timeline or its old content. Memory does not grow with the traces.
/// Errors: UsageError without files, for one without a rank, and for two of one rank; SystemError;
/// CorruptFile for a file that is no such trace.
MergedTrace merge_traces(const std::filesystem::path& path,
                         const std::vector<std::filesystem::path>& traces);

/// The traces of ranks in a folder: *.rank<number>.json, by rank.
/// Errors: SystemError; UsageError if there is none, or those of several timelines.
std::vector<std::filesystem::path> rank_traces_in(const std::filesystem::path& folder);

/// A barrier of all ranks, by the clock of one rank: no rank leaves it before the last has entered.
struct MeetingSpan {
  double begin_us = 0;
  double end_us = 0;
};

/// Correction to add to a rank's times for rank 0's clock, from barriers that both were in, in
/// order. 0 if the clocks are consistent: each barrier has begun on both before it ends on either.
/// Else the middle of the possible range, which is off by half a barrier's duration at most. Pure.
double clock_shift_us(const std::vector<MeetingSpan>& of_rank_0,
                      const std::vector<MeetingSpan>& of_rank);

}  // namespace lockstep::inline internal
