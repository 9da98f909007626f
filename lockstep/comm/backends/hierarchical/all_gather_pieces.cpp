#include "lockstep/comm/backends/hierarchical/chunk_piece.h"
#include "lockstep/comm/backends/hierarchical/told_call.h"
#include "lockstep/comm/kernels/copy_kernel.h"

namespace lockstep::hierarchical {
namespace {

// A range of all chunks. Staging: the call and this machine's chunks that the rank carries, once
// for each other machine; then calls and chunks that arrive, in the order of machines.
class AllGatherPiece final : public ChunkPiece {
 public:
  AllGatherPiece(const Site& site, const std::vector<shm::Piece>& outputs, const shm::Piece& input,
                 const shm::Range& range)
      : ChunkPiece(site, site.all_gather, range.bytes,
                   {.kind = shm::CallKind::kAllGather,
                    .element = input.element,
                    .elements = input.elements()}),
        input_(input.data + range.begin) {
    for (const shm::Piece& output : outputs) outputs_.push_back(output.data + range.begin);
    for (int machine = 0; exchanges() && machine < site.machines.count; ++machine) {
      const bool is_own = machine == site.machines.machine;
      sent_bytes_.push_back(is_own ? 0 : kToldCallBytes + bytes_of(own_chunks()));
      received_bytes_.push_back(is_own ? 0 : kToldCallBytes + bytes_of(chunks_of(machine)));
      all_sent_bytes_ += sent_bytes_.back();
      all_received_bytes_ += received_bytes_.back();
    }
  }

  std::int64_t staging_bytes() const override { return all_sent_bytes_ + all_received_bytes_; }

  std::unique_ptr<shm::Operation> before(const at::Tensor&) override {
    // The input may be the place of another rank's chunk.
    return local_transfer(plan_.before, input_,
                          {.target = output_of(site_.rank), .source = input_, .bytes = bytes_});
  }

  std::unique_ptr<GlooCall> exchange(const at::Tensor& staging, Deadline deadline) override {
    if (!exchanges()) return nullptr;
    auto* target = static_cast<std::byte*>(staging.mutable_data_ptr());
    for (int copies = 1; copies < site_.machines.count; ++copies) {
      tell_call(target, call_);
      target += kToldCallBytes;
      for (const int chunk : own_chunks()) {
        const bool is_input = chunk == site_.rank && !plan_.before.happens;
        lockstep::copy(target, is_input ? input_ : output_of(chunk), bytes_);
        target += bytes_;
      }
    }
    return site_.exchange->start_all_to_all(staging.narrow(0, all_sent_bytes_, all_received_bytes_),
                                            staging.narrow(0, 0, all_sent_bytes_), received_bytes_,
                                            sent_bytes_, deadline);
  }

  std::unique_ptr<GlooCall> spread(const at::Tensor& staging, Deadline) override {
    const auto* source = static_cast<const std::byte*>(staging.const_data_ptr()) + all_sent_bytes_;
    if (exchanges()) check_told_calls(source, received_bytes_, call_, site_.machines);
    std::byte* const own = output_of(site_.rank);
    if (own != input_ && !plan_.before.happens) lockstep::copy(own, input_, bytes_);
    if (!exchanges()) return nullptr;
    for (int machine = 0; machine < site_.machines.count; ++machine) {
      if (machine == site_.machines.machine) continue;
      source += kToldCallBytes;
      for (const int chunk : chunks_of(machine)) {
        lockstep::copy(output_of(chunk), source, bytes_);
        source += bytes_;
      }
    }
    return nullptr;
  }

  std::unique_ptr<shm::Operation> after(const at::Tensor&) override {
    return local_transfer(plan_.after, output_of(site_.rank), {});
  }

 private:
  std::byte* output_of(int chunk) const { return outputs_[static_cast<std::size_t>(chunk)]; }

  std::unique_ptr<shm::Operation> local_transfer(const LocalStep& step, const std::byte* own,
                                                 const shm::OwnCopy& own_copy) const {
    if (!step.happens) return nullptr;
    shm::TransferPlan plan = transfer_plan(step);
    plan.own = own_copy;
    for (const LocalMove& move : step.outgoing) {
      plan.outgoing.push_back({.data = move.chunk == site_.rank ? own : output_of(move.chunk),
                               .bytes = bytes_,
                               .part = move.part});
    }
    for (const LocalMove& move : step.incoming) {
      plan.incoming.push_back(
          {.data = output_of(move.chunk), .bytes = bytes_, .peer = move.peer, .part = move.part});
    }
    return shm::make_transfer(std::move(plan));
  }

  const std::byte* const input_;
  std::vector<std::byte*> outputs_;
};

}  // namespace

Pieces all_gather_pieces(const Site& site, const std::vector<shm::Piece>& outputs,
                         const shm::Piece& input) {
  Pieces pieces;
  for (const shm::Range& range : piece_ranges(input.bytes, site.ranks)) {
    pieces.push_back(std::make_unique<AllGatherPiece>(site, outputs, input, range));
  }
  return pieces;
}

}  // namespace lockstep::hierarchical
