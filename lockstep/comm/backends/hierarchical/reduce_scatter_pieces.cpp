#include "lockstep/comm/backends/hierarchical/chunk_piece.h"
#include "lockstep/comm/backends/hierarchical/told_call.h"
#include "lockstep/comm/kernels/reduce_kernel.h"

namespace lockstep::hierarchical {
namespace {

// A range of all chunks. Staging: the machine's sums of the chunks that this rank carries, first
// those of other machines, in their order, with the call in front of each machine's, then those of
// its own; then what arrives: the other machines' calls and sums of the chunks of its own, in the
// order of machines.
class ReduceScatterPiece final : public ChunkPiece {
 public:
  ReduceScatterPiece(const Site& site, const shm::Piece& output,
                     const std::vector<shm::Piece>& inputs, ReduceOp op, const shm::Range& range)
      : ChunkPiece(site, site.reduce_scatter, range.bytes,
                   {.kind = shm::CallKind::kReduceScatter,
                    .element = output.element,
                    .op = op,
                    .elements = output.elements()}),
        element_(output.element),
        op_(op),
        output_(output.data + range.begin),
        offsets_(inputs.size(), 0) {
    for (const shm::Piece& input : inputs) inputs_.push_back(input.data + range.begin);
    if (!exchanges()) return;
    for (int machine = 0; machine < site.machines.count; ++machine) {
      const bool is_own = machine == site.machines.machine;
      if (!is_own) {
        call_offsets_.push_back(end_);
        end_ += kToldCallBytes;
      }
      sent_bytes_.push_back(is_own ? 0 : kToldCallBytes + lay_out(chunks_of(machine)));
      received_bytes_.push_back(is_own ? 0 : kToldCallBytes + bytes_of(own_chunks()));
      all_received_bytes_ += received_bytes_.back();
    }
    all_sent_bytes_ = end_;
    lay_out(own_chunks());
  }

  std::int64_t staging_bytes() const override { return end_ + all_received_bytes_; }

  std::unique_ptr<shm::Operation> before(const at::Tensor& staging) override {
    shm::TransferPlan plan = transfer_plan(plan_.before);
    for (const LocalMove& move : plan_.before.outgoing) {
      plan.outgoing.push_back({.data = input_of(move.chunk), .bytes = bytes_, .part = move.part});
    }
    for (const LocalMove& move : plan_.before.summed) {
      plan.reduced.push_back(
          {.reduction = {.element = element_, .op = op_ == ReduceOp::kAvg ? ReduceOp::kSum : op_},
           .own = input_of(move.chunk),
           .data = sum_of(move.chunk, staging),
           .bytes = bytes_,
           .part = move.part});
    }
    return shm::make_transfer(std::move(plan));
  }

  std::unique_ptr<GlooCall> exchange(const at::Tensor& staging, Deadline deadline) override {
    if (!exchanges()) return nullptr;
    for (const std::int64_t offset : call_offsets_) tell_call(begin_of(staging) + offset, call_);
    return site_.exchange->start_all_to_all(staging.narrow(0, end_, all_received_bytes_),
                                            staging.narrow(0, 0, all_sent_bytes_), received_bytes_,
                                            sent_bytes_, deadline);
  }

  std::unique_ptr<GlooCall> spread(const at::Tensor& staging, Deadline) override {
    if (!exchanges()) return nullptr;
    const Reduction reduction{.element = element_, .op = op_, .factor = 1.0 / site_.ranks};
    const std::byte* received = begin_of(staging) + end_;
    check_told_calls(received, received_bytes_, call_, site_.machines);
    received += kToldCallBytes;
    for (const int chunk : own_chunks()) {
      std::vector<const std::byte*> sources;
      const std::byte* other = received;
      for (int machine = 0; machine < site_.machines.count; ++machine) {
        if (machine == site_.machines.machine) {
          sources.push_back(sum_of(chunk, staging));
        } else {
          sources.push_back(other);
          other += kToldCallBytes + bytes_of(own_chunks());
        }
      }
      received += bytes_;
      std::byte* const target = chunk == site_.rank ? output_ : sum_of(chunk, staging);
      lockstep::reduce(reduction, sources, {&target, 1}, bytes_ / element_bytes(element_));
    }
    return nullptr;
  }

  std::unique_ptr<shm::Operation> after(const at::Tensor& staging) override {
    if (!plan_.after.happens) return nullptr;
    shm::TransferPlan plan = transfer_plan(plan_.after);
    for (const LocalMove& move : plan_.after.outgoing) {
      plan.outgoing.push_back(
          {.data = sum_of(move.chunk, staging), .bytes = bytes_, .part = move.part});
    }
    for (const LocalMove& move : plan_.after.incoming) {
      plan.incoming.push_back(
          {.data = output_, .bytes = bytes_, .peer = move.peer, .part = move.part});
    }
    return shm::make_transfer(std::move(plan));
  }

 private:
  const std::byte* input_of(int chunk) const { return inputs_[static_cast<std::size_t>(chunk)]; }
  static std::byte* begin_of(const at::Tensor& staging) {
    return static_cast<std::byte*>(staging.mutable_data_ptr());
  }
  std::byte* sum_of(int chunk, const at::Tensor& staging) const {
    return begin_of(staging) + offsets_[static_cast<std::size_t>(chunk)];
  }

  // Returns the bytes of all.
  std::int64_t lay_out(const std::vector<int>& chunks) {
    for (const int chunk : chunks) {
      offsets_[static_cast<std::size_t>(chunk)] = end_;
      end_ += static_cast<std::int64_t>(bytes_);
    }
    return bytes_of(chunks);
  }

  const Element element_;
  const ReduceOp op_;
  std::byte* const output_;
  std::vector<const std::byte*> inputs_;
  std::vector<std::int64_t> offsets_;  // of sums, by chunk
  std::vector<std::int64_t> call_offsets_;
  std::int64_t end_ = 0;  // of the sums
};

}  // namespace

Pieces reduce_scatter_pieces(const Site& site, const shm::Piece& output,
                             const std::vector<shm::Piece>& inputs, ReduceOp op) {
  Pieces pieces;
  for (const shm::Range& range : piece_ranges(output.bytes, site.ranks)) {
    pieces.push_back(std::make_unique<ReduceScatterPiece>(site, output, inputs, op, range));
  }
  return pieces;
}

}  // namespace lockstep::hierarchical
