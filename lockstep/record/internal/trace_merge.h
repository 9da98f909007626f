#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// The range of the profiler around each of the barriers by which clocks are compared.
inline constexpr const char* kClockSpan = "lockstep::clock";

struct MergedTrace {
  std::vector<int> ranks = {};
  std::int64_t events = 0;
  /// The most that a rank's clock was off rank 0's, and put right.
  double largest_shift_us = 0;
};

/// Makes one timeline of the traces of a job's ranks, as lockstep::Trace or PyTorch's profiler
/// write them: for ui.perfetto.dev and chrome://tracing. A rank is a process, named "rank 1" and
/// labelled with its machine, a CUDA device of it another; times are in µs from the earliest event.
///
/// Each rank's times are by its machine's clock. Where traces have the barriers of a TraceCallback
/// (kClockSpan), the clocks of machines that differ are put right by them (clock_shift_us): to some
/// ten µs, half of a barrier's time. Else they are as the machines have them.
///
/// `path` holds the whole timeline, or what it held before. Memory does not grow with the traces.
/// Errors: UsageError without files, for one that names no rank, and for two of one rank;
/// SystemError; CorruptFile for what is no such trace.
MergedTrace merge_traces(const std::filesystem::path& path,
                         const std::vector<std::filesystem::path>& traces);

/// The traces of ranks in a folder: *.rank<number>.json, by rank. Errors: SystemError; UsageError
/// where there is none, or there are those of several timelines.
std::vector<std::filesystem::path> rank_traces_in(const std::filesystem::path& folder);

/// A meeting of all ranks: none ends before the last has begun. By the clock of the rank.
struct MeetingSpan {
  double begin_us = 0;
  double end_us = 0;
};

/// What is added to a rank's times so that they are by rank 0's clock, from meetings that both were
/// in, in their order. As the clocks are, where that is possible: where each meeting has begun on
/// both before it ends on either. Else the middle of what is possible, which is off by half a
/// meeting's length at most. Pure.
double clock_shift_us(const std::vector<MeetingSpan>& of_rank_0,
                      const std::vector<MeetingSpan>& of_rank);

}  // namespace lockstep::inline internal
