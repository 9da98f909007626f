#include <algorithm>

#include "lockstep/comm/backends/hierarchical/local_transfer.h"
#include "lockstep/comm/backends/hierarchical/pieces.h"

namespace lockstep::hierarchical {
namespace {

// Where a broadcast comes from.
struct Source {
  int rank = 0;
  int machine = 0;
  int local_index = 0;
};

Source source_of(const Machines& machines, int rank) {
  Source source;
  for (int machine = 0; machine < machines.count; ++machine) {
    const std::vector<int>& ranks = machines.ranks[static_cast<std::size_t>(machine)];
    const auto found = std::ranges::find(ranks, rank);
    if (found == ranks.end()) continue;
    source = {
        .rank = rank, .machine = machine, .local_index = static_cast<int>(found - ranks.begin())};
  }
  return source;
}

class BroadcastPiece final : public PieceSteps {
 public:
  BroadcastPiece(const Site& site, const at::Tensor& whole, const shm::Piece& piece,
                 const Source& source)
      : site_(site), whole_(whole), shares_(local_shares(site.machines, piece)), source_(source) {}

  std::unique_ptr<shm::Operation> before(const at::Tensor&) override {
    return is_at_source() ? make_broadcast(shares_, source_.local_index) : nullptr;
  }

  std::unique_ptr<GlooCall> exchange(const at::Tensor&, Deadline deadline) override {
    if (!site_.machines.has_share()) return nullptr;
    const shm::Piece& own = shares_.shares[static_cast<std::size_t>(site_.machines.local_index)];
    if (own.bytes == 0) return nullptr;
    return site_.exchange->start_broadcast({.whole = whole_, .data = own.data, .bytes = own.bytes},
                                           source_.machine, deadline);
  }

  std::unique_ptr<GlooCall> spread(const at::Tensor&, Deadline) override { return nullptr; }

  bool ends_on_machine() const override { return !is_at_source(); }

  std::unique_ptr<shm::Operation> after(const at::Tensor&) override {
    if (is_at_source()) return nullptr;
    return make_all_gather(shares_, shm::CallKind::kBroadcast, source_.rank);
  }

 private:
  bool is_at_source() const { return site_.machines.machine == source_.machine; }

  const Site& site_;
  const at::Tensor whole_;
  const LocalShares shares_;
  const Source source_;
};

}  // namespace

Pieces broadcast_pieces(const Site& site, const at::Tensor& tensor, int source) {
  Pieces pieces;
  const Source from = source_of(site.machines, source);
  const shm::Piece whole = shm::piece_of(tensor);
  for (const shm::Range& range : piece_ranges(whole.bytes)) {
    const shm::Piece piece{whole.data + range.begin, range.bytes, whole.element};
    pieces.push_back(std::make_unique<BroadcastPiece>(site, tensor, piece, from));
  }
  return pieces;
}

}  // namespace lockstep::hierarchical
