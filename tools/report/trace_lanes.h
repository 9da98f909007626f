#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::inline internal {

enum class LaneKind : std::uint8_t { kForward, kBackward, kExchange, kDevice };

struct LaneSpan {
  LaneKind kind = LaneKind::kForward;
  double begin_us = 0;
  double end_us = 0;
  std::string name = {};  ///< that of the longest operator in it
  double named_us = 0;    ///< the length of that operator
};

struct Lane {
  int rank = 0;
  /// Sorted by kind, then by time; spans of a kind do not overlap.
  std::vector<LaneSpan> spans = {};
};

struct TraceLanes {
  std::vector<Lane> lanes = {};
  double duration_us = 0;
};

/// What each rank does by a timeline of merge_traces(), in at most some 1200 spans of a kind: those
/// that are close together become one. Errors: as read_trace.
TraceLanes read_lanes(const std::filesystem::path& timeline);

/// A legend and inline SVG. Pure.
std::string draw_lanes(const TraceLanes& lanes);

}  // namespace lockstep::inline internal
