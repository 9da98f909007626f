#include <utility>

#include "lockstep/comm/backends/hierarchical/local_transfer.h"
#include "lockstep/comm/backends/hierarchical/pieces.h"
#include "lockstep/comm/backends/shm/transfer.h"

namespace lockstep::hierarchical {
namespace {

/// Sums a share between machines.
class SumPiece : public PieceSteps {
 public:
  SumPiece(const Site& site, ReduceOp op, Element element, Share own)
      : site_(site), op_(op), element_(element), own_(std::move(own)) {}

  std::int64_t staging_bytes() const override {
    return exchanges() ? site_.exchange->staging_bytes(own_) : 0;
  }

  std::unique_ptr<shm::Operation> before(const at::Tensor&) override { return nullptr; }

  std::unique_ptr<GlooCall> exchange(const at::Tensor& staging, Deadline deadline) override {
    return exchanges() ? site_.exchange->start_scatter(own_, staging, deadline) : nullptr;
  }

  std::unique_ptr<GlooCall> spread(const at::Tensor& staging, Deadline deadline) override {
    if (!exchanges()) return nullptr;
    site_.exchange->sum({.element = element_, .op = op_, .factor = 1.0 / site_.ranks}, own_,
                        staging);
    if (!site_.exchange->needs_spread()) return nullptr;
    return site_.exchange->start_spread(own_, staging, deadline);
  }

  bool ends_on_machine() const override { return false; }

  std::unique_ptr<shm::Operation> after(const at::Tensor&) override { return nullptr; }

 protected:
  ReduceOp op() const { return op_; }

 private:
  bool exchanges() const { return own_.bytes > 0; }

  const Site& site_;
  const ReduceOp op_;
  const Element element_;
  const Share own_;
};

class AllReducePiece final : public SumPiece {
 public:
  AllReducePiece(const Site& site, const at::Tensor& whole, const shm::Piece& piece, ReduceOp op)
      : AllReducePiece(site, whole, local_shares(site.machines, piece), op) {}

  std::unique_ptr<shm::Operation> before(const at::Tensor&) override {
    return make_reduce_scatter(shares_, op());
  }

  bool ends_on_machine() const override { return true; }

  std::unique_ptr<shm::Operation> after(const at::Tensor&) override {
    return make_all_gather(shares_, shm::CallKind::kAllReduce);
  }

 private:
  AllReducePiece(const Site& site, const at::Tensor& whole, LocalShares shares, ReduceOp op)
      : SumPiece(site, op, shares.whole.element, own_share(site, whole, shares)),
        shares_(std::move(shares)) {}

  static Share own_share(const Site& site, const at::Tensor& whole, const LocalShares& shares) {
    if (!site.machines.has_share()) return {};
    const shm::Piece& own = shares.shares[static_cast<std::size_t>(site.machines.local_index)];
    return {.whole = whole, .data = own.data, .bytes = own.bytes};
  }

  const LocalShares shares_;
};

class MachineBarrier final : public PieceSteps {
 public:
  std::unique_ptr<shm::Operation> before(const at::Tensor&) override {
    return shm::make_transfer({.call = {.kind = shm::CallKind::kBarrier}});
  }
  std::unique_ptr<GlooCall> exchange(const at::Tensor&, Deadline) override { return nullptr; }
  std::unique_ptr<GlooCall> spread(const at::Tensor&, Deadline) override { return nullptr; }
  bool ends_on_machine() const override { return false; }
  std::unique_ptr<shm::Operation> after(const at::Tensor&) override { return nullptr; }
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

Pieces sum_pieces(const Site& site, const at::Tensor& tensor) {
  Pieces pieces;
  const shm::Piece whole = shm::piece_of(tensor);
  for (const shm::Range& range : piece_ranges(whole.bytes)) {
    Share part{.whole = tensor, .data = whole.data + range.begin, .bytes = range.bytes};
    pieces.push_back(
        std::make_unique<SumPiece>(site, ReduceOp::kSum, whole.element, std::move(part)));
  }
  return pieces;
}

Pieces machine_barrier_pieces() {
  Pieces pieces;
  pieces.push_back(std::make_unique<MachineBarrier>());
  return pieces;
}

}  // namespace lockstep::hierarchical
