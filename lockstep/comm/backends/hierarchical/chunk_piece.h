#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/backends/hierarchical/pieces.h"
#include "lockstep/comm/backends/shm/transfer.h"

namespace lockstep::hierarchical {

/// A range of the chunks of all ranks, which a rank carries between machines as a plan says.
/// Threads, lifetime, errors: as PieceSteps; the site outlives it.
class ChunkPiece : public PieceSteps {
 public:
  bool ends_on_machine() const override { return plan_.after.happens; }

 protected:
  /// `bytes`: of the range of each chunk; `call`: of whole chunks.
  ChunkPiece(const Site& site, const ChunkPlan& plan, std::uint64_t bytes, const shm::Call& call)
      : site_(site), plan_(plan), bytes_(bytes), call_(call) {}

  bool exchanges() const { return site_.machines.has_share() && bytes_ > 0; }
  /// Those of a machine that this rank carries.
  const std::vector<int>& chunks_of(int machine) const {
    return plan_.carried[static_cast<std::size_t>(machine)];
  }
  const std::vector<int>& own_chunks() const { return chunks_of(site_.machines.machine); }
  std::int64_t bytes_of(const std::vector<int>& chunks) const {
    return static_cast<std::int64_t>(bytes_ * chunks.size());
  }
  /// A transfer of a step within the machine, to which its moves are to be added.
  shm::TransferPlan transfer_plan(const LocalStep& step) const {
    shm::TransferPlan plan{.call = call_, .parts = step.parts, .longest_bytes = bytes_};
    plan.call.elements = bytes_ / element_bytes(call_.element);
    return plan;
  }

  const Site& site_;
  const ChunkPlan& plan_;
  const std::uint64_t bytes_;
  const shm::Call call_;
  /// By machine, with the call in front; 0 of the own one.
  std::vector<std::int64_t> sent_bytes_;
  std::vector<std::int64_t> received_bytes_;
  std::int64_t all_sent_bytes_ = 0;
  std::int64_t all_received_bytes_ = 0;
};

}  // namespace lockstep::hierarchical
