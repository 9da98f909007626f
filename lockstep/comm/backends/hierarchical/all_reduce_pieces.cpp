#include "lockstep/comm/backends/hierarchical/local_transfer.h"
#include "lockstep/comm/backends/hierarchical/pieces.h"

namespace lockstep::hierarchical {
namespace {

class AllReducePiece final : public PieceSteps {
 public:
  AllReducePiece(const Site& site, const at::Tensor& whole, const shm::Piece& piece, ReduceOp op)
      : site_(site), shares_(local_shares(site.machines, piece)), op_(op) {
    if (!site.machines.has_share()) return;
    const shm::Piece& own = shares_.shares[static_cast<std::size_t>(site.machines.local_index)];
    own_ = {.whole = whole, .data = own.data, .bytes = own.bytes};
  }

  std::int64_t staging_bytes() const override {
    return exchanges() ? site_.exchange->staging_bytes(own_) : 0;
  }

  std::unique_ptr<shm::Operation> before(const at::Tensor&) override {
    return make_reduce_scatter(shares_, op_);
  }

  std::unique_ptr<GlooCall> exchange(const at::Tensor& staging, Deadline deadline) override {
    return exchanges() ? site_.exchange->start_scatter(own_, staging, deadline) : nullptr;
  }

  std::unique_ptr<GlooCall> spread(const at::Tensor& staging, Deadline deadline) override {
    if (!exchanges()) return nullptr;
    site_.exchange->sum({.element = shares_.whole.element, .op = op_, .factor = 1.0 / site_.ranks},
                        own_, staging);
    if (!site_.exchange->needs_spread()) return nullptr;
    return site_.exchange->start_spread(own_, staging, deadline);
  }

  bool ends_on_machine() const override { return true; }

  std::unique_ptr<shm::Operation> after(const at::Tensor&) override {
    return make_all_gather(shares_, shm::CallKind::kAllReduce);
  }

 private:
  bool exchanges() const { return own_.bytes > 0; }

  const Site& site_;
  const LocalShares shares_;
  const ReduceOp op_;
  Share own_ = {};
};

}  // namespace

Pieces all_reduce_pieces(const Site& site, const at::Tensor& tensor, ReduceOp op) {
  Pieces pieces;
  const shm::Piece whole = shm::piece_of(tensor);
  for (const shm::Range& range : piece_ranges(whole.bytes)) {
    const shm::Piece piece{whole.data + range.begin, range.bytes, whole.element};
    pieces.push_back(std::make_unique<AllReducePiece>(site, tensor, piece, op));
  }
  return pieces;
}

}  // namespace lockstep::hierarchical
