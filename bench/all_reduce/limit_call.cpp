#include <algorithm>

#include <ATen/ops/empty.h>

#include "bench/all_reduce/shared_buffers.h"
#include "bench/all_reduce/subject_call.h"
#include "lockstep/comm/kernels/copy_kernel.h"
#include "lockstep/comm/kernels/reduce_kernel.h"

namespace lockstep::bench {
namespace {

constexpr std::size_t kElementBytes = sizeof(float);
// Past the caches: from here on a store that is not read again soon is better made past them.
constexpr std::size_t kUncachedBytes = 16 << 20;

struct Memory {
  SharedBuffers shared;
  at::Tensor own;  ///< this rank alone
  int rank;
  int ranks;

  std::byte* at(int of_rank, const Part& part) const {
    return shared.of(of_rank) + part.first * kElementBytes;
  }
  std::byte* own_at(const Part& part) const {
    return static_cast<std::byte*>(own.mutable_data_ptr()) + part.first * kElementBytes;
  }
};

class LimitCall : public SubjectCall {
 public:
  LimitCall(Subject subject, std::shared_ptr<const Memory> memory)
      : subject_(std::move(subject)), memory_(std::move(memory)) {}

  const Subject& subject() const override { return subject_; }
  void set_bytes(std::int64_t bytes) override {
    elements_ = static_cast<std::size_t>(bytes) / kElementBytes;
    part_ = part_of(elements_, memory_->rank, memory_->ranks);
  }
  std::span<float> values() override { return {}; }

 protected:
  const Memory& memory() const { return *memory_; }
  const Part& part() const { return part_; }
  std::size_t elements() const { return elements_; }
  Store store() const {
    return elements_ * kElementBytes < kUncachedBytes ? Store::kOrdinary : Store::kNonTemporal;
  }

 private:
  Subject subject_;
  std::shared_ptr<const Memory> memory_;
  std::size_t elements_ = 0;
  Part part_{};
};

constexpr Reduction kSumOfFloats{Element::kFloat32, ReduceOp::kSum};

// What the backend does in place, less the waiting.
class KernelCall final : public LimitCall {
 public:
  using LimitCall::LimitCall;

  void set_bytes(std::int64_t bytes) override {
    LimitCall::set_bytes(bytes);
    sources_.clear();
    targets_.clear();
    for (int rank = 0; rank < memory().ranks; ++rank) {
      targets_.push_back(memory().at(rank, part()));
      sources_.push_back(targets_.back());
    }
  }
  void call() override { reduce(kSumOfFloats, sources_, targets_, part().count); }
  std::span<float> values() override {
    return {reinterpret_cast<float*>(memory().shared.of(memory().rank)), elements()};
  }

 private:
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> targets_;
};

class CopyCall final : public LimitCall {
 public:
  using LimitCall::LimitCall;
  void call() override {
    copy(memory().own_at(part()), memory().at(memory().rank, part()), part().count * kElementBytes,
         store());
  }
};

class AddCall final : public LimitCall {
 public:
  using LimitCall::LimitCall;
  void call() override {
    const int next = (memory().rank + 1) % memory().ranks;
    const std::byte* const sources[] = {memory().at(memory().rank, part()),
                                        memory().at(next, part())};
    std::byte* const targets[] = {memory().own_at(part())};
    reduce(kSumOfFloats, sources, targets, part().count, store());
  }
};

// What private tensors cannot do without, less the waiting: each rank writes its tensor where the
// others read it, a chunk at a time so that it stays in caches, and reads as many bytes of theirs
// as an all-reduce must.
class HandOverCall final : public LimitCall {
 public:
  using LimitCall::LimitCall;
  void call() override {
    constexpr std::size_t kChunk = 128 * 1024 / kElementBytes;
    constexpr std::size_t kChunksInUse = 4;
    const auto ranks = static_cast<std::size_t>(memory().ranks);
    for (std::size_t first = 0; first < elements(); first += kChunk) {
      const Part chunk{.first = first, .count = std::min(kChunk, elements() - first)};
      const Part slot{.first = first / kChunk % kChunksInUse * kChunk, .count = chunk.count};
      std::byte* const own = memory().own_at(chunk);
      lockstep::copy(memory().at(memory().rank, slot), own, chunk.count * kElementBytes);
      for (std::size_t other = 1; other < ranks; ++other) {
        const int peer =
            static_cast<int>((static_cast<std::size_t>(memory().rank) + other) % ranks);
        const std::byte* const sources[] = {own, memory().at(peer, slot)};
        std::byte* const targets[] = {own};
        reduce(kSumOfFloats, sources, targets, 2 * chunk.count / ranks);
      }
    }
  }
};

Subject limit(const char* name, double traffic) {
  return {.name = name, .memory = "shared", .is_limit = true, .traffic = traffic};
}

}  // namespace

std::vector<std::unique_ptr<SubjectCall>> make_limit_calls(const Control& control,
                                                           std::int64_t bytes_max) {
  const auto elements = bytes_max / static_cast<std::int64_t>(kElementBytes);
  const auto memory = std::make_shared<const Memory>(Memory{SharedBuffers(control, bytes_max),
                                                            at::empty({elements}, at::kFloat),
                                                            control.rank(), control.ranks()});
  std::vector<std::unique_ptr<SubjectCall>> calls;
  calls.push_back(std::make_unique<KernelCall>(limit(kKernel, 2.0 * control.ranks()), memory));
  calls.push_back(std::make_unique<CopyCall>(limit("copy", 2), memory));
  calls.push_back(std::make_unique<AddCall>(limit("add", 3), memory));
  const double others = 2.0 * (control.ranks() - 1) / control.ranks();
  calls.push_back(std::make_unique<HandOverCall>(limit("hand-over", 2 + 3 * others), memory));
  return calls;
}

}  // namespace lockstep::bench
