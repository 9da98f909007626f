#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// What a rank does at a time.
enum class LaneKind : std::uint8_t { kForward, kBackward, kExchange, kDevice };

struct LaneSpan {
  LaneKind kind = LaneKind::kForward;
  double begin_us = 0;
  double end_us = 0;
  std::string name = {};  ///< of the longest that it is made of
  double named_us = 0;    ///< how long that is
};

struct Lane {
  int rank = 0;
  /// By kind, then by time; those of a kind do not overlap.
  std::vector<LaneSpan> spans = {};
};

struct TraceLanes {
  std::vector<Lane> lanes = {};
  double duration_us = 0;
};

/// What a timeline of merge_traces() shows of each rank, in at most some 1200 spans of a kind:
/// those that are close together are made one. Errors: as read_trace.
TraceLanes read_lanes(const std::filesystem::path& timeline);

/// As inline SVG with a legend. Pure.
std::string draw_lanes(const TraceLanes& lanes);

}  // namespace lockstep::inline internal
