#include "lockstep/fully_shard/internal/flat_parameter.h"

#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/internal/c10d_backend.h"
#include "lockstep/comm/internal/process_group_state.h"

namespace lockstep {
namespace {

struct FailedWork final : c10d::Work {
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return false; }
  bool wait(std::chrono::milliseconds) override { throw std::runtime_error("connection closed"); }
};

/// Its gathers fail, and it keeps their tensors, to write to them later.
class FailingBackend final : public c10d::Backend {
 public:
  FailingBackend() : c10d::Backend(/*rank=*/0, /*size=*/2) {}

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions&) override {
    for (const at::Tensor& tensor : {output, input}) {
      used_.emplace_back(tensor, static_cast<float*>(tensor.mutable_data_ptr()));
    }
    return c10::make_intrusive<FailedWork>();
  }

  /// Its tensors, with the memory that each had when its gather began.
  const std::vector<std::pair<at::Tensor, float*>>& used() const { return used_; }

 private:
  std::vector<std::pair<at::Tensor, float*>> used_;
};

struct NoWatcher final : ParameterWatcher {
  void before_use(const std::vector<at::Tensor>&, const at::Tensor*, const char*) override {}
};

TEST(FlatParameter, LeavesFailedGathersTheirMemory) {
  const auto backend = c10::make_intrusive<FailingBackend>();
  const auto state = std::make_shared<ProcessGroup::State>();
  state->world_size = 2;
  state->name = "pair";
  state->timeout = std::chrono::minutes(1);
  state->backend = std::make_shared<C10dBackend>(backend);
  NoWatcher watcher;
  std::optional<FlatParameter> flat(
      std::in_place, std::vector<NamedTensor>{{"weight", at::ones({300, 5})}}, watcher,
      FlatParameter::Options{.group = ProcessGroup(state), .name = "unit", .init_sync = false});

  flat->begin_gather();
  EXPECT_THROW(flat->end_gather(), CommError);
  EXPECT_THROW(flat->end_gather(), CommError);
  flat->begin_gather();
  flat->drop_gather();
  flat->begin_gather();
  flat->drop_pass();
  flat->gather_alone(at::ones({1500}));
  flat->begin_gather();
  flat.reset();

  ASSERT_EQ(backend->used().size(), 8U);
  for (const auto& [tensor, memory] : backend->used()) {
    ASSERT_EQ(tensor.const_data_ptr(), memory);
    memory[tensor.numel() - 1] = 2;
  }
}

}  // namespace
}  // namespace lockstep
