#include "lockstep/comm/internal/c10d_backend.h"

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace lockstep::inline internal {
namespace {

using std::chrono::milliseconds;

/// Records the timeout in the options of each collective. Its works are null.
class RecordingBackend final : public c10d::Backend {
 public:
  using Tensor = at::Tensor;
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  RecordingBackend() : c10d::Backend(/*rank=*/0, /*size=*/1) {}

  WorkPtr broadcast(Tensors&, const c10d::BroadcastOptions& options) override {
    return record("broadcast", options.timeout);
  }
  WorkPtr allreduce(Tensors&, const c10d::AllreduceOptions& options) override {
    return record("allreduce", options.timeout);
  }
  WorkPtr reduce(Tensors&, const c10d::ReduceOptions& options) override {
    return record("reduce", options.timeout);
  }
  WorkPtr allgather(std::vector<Tensors>&, Tensors&,
                    const c10d::AllgatherOptions& options) override {
    return record("allgather", options.timeout);
  }
  WorkPtr _allgather_base(Tensor&, Tensor&, const c10d::AllgatherOptions& options) override {
    return record("_allgather_base", options.timeout);
  }
  WorkPtr gather(std::vector<Tensors>&, Tensors&, const c10d::GatherOptions& options) override {
    return record("gather", options.timeout);
  }
  WorkPtr scatter(Tensors&, std::vector<Tensors>&, const c10d::ScatterOptions& options) override {
    return record("scatter", options.timeout);
  }
  WorkPtr reduce_scatter(Tensors&, std::vector<Tensors>&,
                         const c10d::ReduceScatterOptions& options) override {
    return record("reduce_scatter", options.timeout);
  }
  WorkPtr _reduce_scatter_base(Tensor&, Tensor&,
                               const c10d::ReduceScatterOptions& options) override {
    return record("_reduce_scatter_base", options.timeout);
  }
  WorkPtr alltoall(Tensors&, Tensors&, const c10d::AllToAllOptions& options) override {
    return record("alltoall", options.timeout);
  }
  WorkPtr alltoall_base(Tensor&, Tensor&, std::vector<std::int64_t>&, std::vector<std::int64_t>&,
                        const c10d::AllToAllOptions& options) override {
    return record("alltoall_base", options.timeout);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return record("barrier", options.timeout);
  }

  const std::vector<std::pair<std::string, milliseconds>>& timeouts() const { return timeouts_; }

 private:
  WorkPtr record(const char* collective, milliseconds timeout) {
    timeouts_.emplace_back(collective, timeout);
    return {};
  }

  std::vector<std::pair<std::string, milliseconds>> timeouts_;
};

struct Collective {
  const char* c10d_name;
  std::function<void(NativeBackend&, const CallTerms&)> call;
};

// All except send and recv, to which c10d passes no timeout.
std::vector<Collective> collectives() {
  const at::Tensor tensor = at::zeros({2});
  const std::vector<at::Tensor> tensors{tensor};
  constexpr ReduceOp kSum = ReduceOp::kSum;
  return {
      {"broadcast", [=](auto& backend, auto& terms) { backend.broadcast(tensor, 0, terms); }},
      {"allreduce", [=](auto& backend, auto& terms) { backend.all_reduce(tensor, kSum, terms); }},
      {"reduce", [=](auto& backend, auto& terms) { backend.reduce(tensor, 0, kSum, terms); }},
      {"allgather",
       [=](auto& backend, auto& terms) { backend.all_gather(tensors, tensor, terms); }},
      {"_allgather_base",
       [=](auto& backend, auto& terms) { backend.all_gather_into_tensor(tensor, tensor, terms); }},
      {"gather", [=](auto& backend, auto& terms) { backend.gather(tensors, tensor, 0, terms); }},
      {"scatter", [=](auto& backend, auto& terms) { backend.scatter(tensor, tensors, 0, terms); }},
      {"reduce_scatter",
       [=](auto& backend, auto& terms) { backend.reduce_scatter(tensor, tensors, kSum, terms); }},
      {"_reduce_scatter_base",
       [=](auto& backend, auto& terms) {
         backend.reduce_scatter_tensor(tensor, tensor, kSum, terms);
       }},
      {"alltoall",
       [=](auto& backend, auto& terms) { backend.all_to_all(tensors, tensors, terms); }},
      {"alltoall_base",
       [=](auto& backend, auto& terms) {
         backend.all_to_all_single(tensor, tensor, {2}, {2}, terms);
       }},
      {"barrier", [](auto& backend, auto& terms) { backend.barrier(terms); }},
  };
}

TEST(C10dBackend, PassesTheTimeoutOfEachCallToC10d) {
  const auto recorder = c10::make_intrusive<RecordingBackend>();
  C10dBackend backend(recorder);
  std::vector<std::pair<std::string, milliseconds>> expected;
  milliseconds timeout{1'234};
  for (const Collective& collective : collectives()) {
    timeout += milliseconds(7);
    expected.emplace_back(collective.c10d_name, timeout);
    collective.call(backend, {.timeout = timeout});
  }
  EXPECT_EQ(recorder->timeouts(), expected);
}

}  // namespace
}  // namespace lockstep::inline internal
