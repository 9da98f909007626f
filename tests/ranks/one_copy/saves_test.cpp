// What a background save of one copy per machine holds: the state at the boundary at which it was
// taken, whatever the ranks do meanwhile.
#include <filesystem>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>

#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/os/memory/frozen_memory.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "tests/ranks/folder_of_ranks.h"
#include "tests/ranks/one_copy/fixture.h"

namespace lockstep::testing {
namespace {

class OneCopySaves : public OneCopy {
 protected:
  /// Parameters, and what of the optimizer's state is of their size.
  static Tensors tensors_of(const Model& model, const torch::optim::Optimizer& optimizer) {
    Tensors tensors;
    for (const at::Tensor& parameter : model.parameters()) tensors.push_back(parameter.detach());
    const auto state = optimizer_state_dict(optimizer).toGenericDict().at("state").toGenericDict();
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(tensors.size()); ++i) {
      if (!state.contains(i)) continue;
      for (const auto& value : state.at(i).toGenericDict()) {
        if (value.value().isTensor()) tensors.push_back(value.value().toTensor());
      }
    }
    return tensors;
  }

  /// The state of a moment, as a copy and frozen.
  class Moment {
   public:
    explicit Moment(const Tensors& tensors) {
      for (const at::Tensor& tensor : tensors) {
        if (tensor.numel() == 0) continue;
        const auto memory = FreezableMemory::find(tensor.const_data_ptr());
        if (!memory) continue;  // Of a step count.
        if (!frozen_) frozen_ = memory->freeze();
        copies_.push_back(tensor.clone());
        first_.push_back(tensor.const_data_ptr());
      }
    }
    bool is_frozen() const { return frozen_ != nullptr; }
    std::size_t size() const { return copies_.size(); }
    void expect_unchanged() const {
      for (std::size_t i = 0; i < copies_.size(); ++i) {
        const at::Tensor read = at::full_like(copies_[i], 5);
        frozen_->read(first_[i], read.nbytes(), static_cast<std::byte*>(read.mutable_data_ptr()));
        EXPECT_TRUE(same_bits(read, copies_[i])) << "tensor " << i;
      }
    }

   private:
    std::shared_ptr<const FrozenMemory> frozen_;
    Tensors copies_;
    std::vector<const void*> first_;
  };

  template <class Optimizer, class Options>
  void expect_frozen_while_training(const Options& options, at::ScalarType dtype = at::kFloat) {
    Model model = model_of(true, kParameterSizes, dtype);
    Optimizer optimizer(model->parameters(), options);
    for (int step = 0; step < 6; step += 2) {
      {
        const Moment moment(tensors_of(model, optimizer));
        ASSERT_TRUE(moment.is_frozen());
        for (int later = 0; later < 2; ++later) {
          make_step(model, optimizer, step + later);
          moment.expect_unchanged();
        }
      }
      group_.barrier();  // No rank holds an earlier one.
    }
  }
  template <class Optimizer>
  void make_step(Model& model, Optimizer& optimizer, int step) const {
    optimizer.zero_grad();
    backward(model, step);
    step_optimizer(optimizer);
  }
};

TEST_F(OneCopySaves, WhatIsFrozenStaysWhileRanksTrain) {
  NEEDS_SHARED_MEMORY();
  expect_frozen_while_training<AdamW>(AdamWOptions{.lr = 0.1, .amsgrad = true});
  expect_frozen_while_training<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9}, at::kBFloat16);
  expect_frozen_while_training<LAMB>(LAMBOptions{.lr = 0.1});
  expect_frozen_while_training<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1), at::kDouble);
}

TEST_F(OneCopySaves, WhatTheProgramChangesBeforeIsSavedAndAfterIsNot) {
  NEEDS_SHARED_MEMORY();
  Model model = model_of(true);
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  train(model, optimizer, 0, 2);
  const at::NoGradGuard no_grad;
  model->parameters()[3].narrow(0, 70'000, 1000).fill_(7);
  const Moment moment(tensors_of(model, optimizer));
  ASSERT_TRUE(moment.is_frozen());
  model->parameters()[3].mul_(0.5);
  model->parameters()[7].set_data(at::ones({70'000}));
  moment.expect_unchanged();
  {
    const at::AutoGradMode with_gradients(true);
    train(model, optimizer, 2, 3);
  }
  moment.expect_unchanged();
}

TEST_F(OneCopySaves, AStateThatIsLoadedMeanwhileIsNotSaved) {
  NEEDS_SHARED_MEMORY();
  Model model = model_of(true);
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  train(model, optimizer, 0, 1);
  const c10::IValue earlier = c10::IValue(optimizer_state_dict(optimizer)).deepcopy();
  train(model, optimizer, 1, 3);
  const Moment moment(tensors_of(model, optimizer));
  ASSERT_TRUE(moment.is_frozen());
  load_optimizer_state_dict(optimizer, earlier);
  train(model, optimizer, 3, 4);
  moment.expect_unchanged();
}

TEST_F(OneCopySaves, MemoryOfAnEarlierStateIsCopiedInstead) {
  NEEDS_SHARED_MEMORY();
  Model model = model_of(true);
  AdamW optimizer(model->parameters(), {.lr = 0.1});
  train(model, optimizer, 0, 1);
  {
    const Moment moment(tensors_of(model, optimizer));
    const Moment another(tensors_of(model, optimizer));
    EXPECT_TRUE(another.is_frozen()) << "of the same state";
    train(model, optimizer, 1, 2);
    EXPECT_FALSE(Moment(tensors_of(model, optimizer)).is_frozen());
    group_.barrier();
  }
  group_.barrier();
  EXPECT_TRUE(Moment(tensors_of(model, optimizer)).is_frozen());
  group_.barrier();
}

TEST_F(OneCopySaves, ModelsThatAreGoneAreSavedToTheEnd) {
  NEEDS_SHARED_MEMORY();
  std::unique_ptr<Moment> moment;
  {
    Model model = model_of(true);
    AdamW optimizer(model->parameters(), {.lr = 0.1});
    train(model, optimizer, 0, 1);
    moment = std::make_unique<Moment>(tensors_of(model, optimizer));
    train(model, optimizer, 1, 2);
  }
  moment->expect_unchanged();
}

TEST_F(OneCopySaves, SnapshotsOfEachStepAreThoseOfSynchronousSaves) {
  NEEDS_SHARED_MEMORY();
  constexpr int kSaves = 6;
  for (const bool sharded : {false, true}) {
    SCOPED_TRACE(sharded);
    const FolderOfRanks folder(group_, "one-copy-saves-");
    Model model = model_of(true);
    AdamW optimizer(model->parameters(), {.lr = 0.1});
    SnapshotDirectory now(std::filesystem::path(folder.path()) / "now",
                          {.keep_last = kSaves, .process_group = group_});
    SnapshotDirectory later(std::filesystem::path(folder.path()) / "later",
                            {.keep_last = kSaves,
                             .asynchronous_saves = true,
                             .sharded_saves = sharded,
                             .process_group = group_});
    for (int step = 0; step < kSaves; ++step) {
      train(model, optimizer, step, step + 1);
      now.save(*model.module(), optimizer, {.step = step});
      later.save(*model.module(), optimizer, {.step = step});
    }
    later.wait();
    group_.barrier();
    for (int step = 0; step < kSaves; ++step) {
      const SnapshotName name{.step = step};
      const SnapshotName other{.step = step, .sharded = sharded};
      const Snapshot expected =
          load_snapshot(std::filesystem::path(folder.path()) / "now" / name.file_name());
      const Snapshot saved =
          load_snapshot(std::filesystem::path(folder.path()) / "later" / other.file_name());
      const auto tensors_in = [](const Snapshot& snapshot) {
        Tensors tensors;
        for (const auto& [key, tensor] : snapshot.model) tensors.push_back(tensor);
        const auto state = snapshot.optimizer.toGenericDict().at("state").toGenericDict();
        for (std::int64_t i = 0; i < 9; ++i) {
          if (!state.contains(i)) continue;
          for (const char* const key : {"step", "exp_avg", "exp_avg_sq"}) {
            tensors.push_back(state.at(i).toGenericDict().at(key).toTensor());
          }
        }
        return tensors;
      };
      SCOPED_TRACE(step);
      expect_same_bits(tensors_in(saved), tensors_in(expected));
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
