#include <algorithm>

#include "lockstep/comm/backends/hierarchical/pieces.h"

namespace lockstep::hierarchical {
namespace {

constexpr std::uint64_t kMostPieceBytes = 4 * 1024 * 1024;
constexpr std::uint64_t kLeastPieceBytes = 1024 * 1024;
constexpr std::uint64_t kPiecesToOverlap = 4;

}  // namespace

std::vector<shm::Range> piece_ranges(std::uint64_t bytes, int chunks) {
  const auto parts = static_cast<std::uint64_t>(chunks);
  const std::uint64_t piece_bytes =
      std::clamp(bytes * parts / kPiecesToOverlap, kLeastPieceBytes, kMostPieceBytes);
  const std::uint64_t most = shm::round_up(piece_bytes / parts, shm::kPageBytes);
  std::vector<shm::Range> ranges;
  std::uint64_t begin = 0;
  do {
    ranges.push_back({.begin = begin, .bytes = std::min(most, bytes - begin)});
    begin += most;
  } while (begin < bytes);
  return ranges;
}

}  // namespace lockstep::hierarchical
