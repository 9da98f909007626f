// Memory of one copy per machine that outlives the copy: the next generation's ranks go on in it.
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "lockstep/one_copy/internal/kept_memory.h"
#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/recovery/internal/private_state.h"
#include "lockstep/recovery/internal/update_mark.h"
#include "lockstep/snapshot/internal/optimizer_description.h"
#include "tests/ranks/one_copy/fixture.h"

namespace lockstep::testing {
namespace {

std::shared_ptr<CopyMemory> memory_of(const Tensors& parameters) {
  return CopyMemory::find(parameters[0].const_data_ptr());
}

class OneCopyKept : public OneCopy {
 protected:
  struct Training {
    explicit Training(Factors of)
        : module(std::move(of)), optimizer(module->factors, {.lr = 0.1}) {}
    void wrap(const ProcessGroup& group, bool one_copy) {
      model.reset();
      model.emplace(module.ptr(), DistributedDataParallelOptions{.process_group = group,
                                                                 .one_copy_per_machine = one_copy});
    }
    /// As recovery does where the group is lost.
    void leave() {
      CopyPlaces(module->factors).leave();
      model.reset();
    }
    Factors module;
    AdamW optimizer;
    std::optional<Model> model = {};
  };

  ProcessGroup group_of(int ranks) const {
    std::vector<int> all(static_cast<std::size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    return group_.new_group(all);
  }
  void train_one(Training& training, int first, int last) const {
    train(*training.model, training.optimizer, first, last);
  }
  static std::uint64_t taken_bytes(int file) {
    struct stat facts {};
    EXPECT_EQ(::fstat(file, &facts), 0);
    constexpr std::uint64_t kUnitOfBlocks = 512;
    return static_cast<std::uint64_t>(facts.st_blocks) * kUnitOfBlocks;
  }
  bool is_last() const { return rank_ == world_size_ - 1; }
};

TEST_F(OneCopyKept, GoesOnInTheMemoryOnAnyNumberOfRanks) {
  NEEDS_SHARED_MEMORY();
  Training copied(module_of(kParameterSizes));
  Training replica(module_of(kParameterSizes));
  copied.wrap(group_, true);
  replica.wrap(group_, false);
  const auto step_both = [&](int step) {
    train_one(copied, step, step + 1);
    train_one(replica, step, step + 1);
    expect_same_bits(copied.module->factors, replica.module->factors);
    expect_same_state(copied.optimizer, replica.optimizer);
  };
  step_both(0);
  const auto memory = memory_of(copied.module->factors);
  for (int again = 1; again < 3; ++again) {
    copied.leave();
    copied.wrap(group_, true);
    EXPECT_EQ(memory_of(copied.module->factors), memory);
    EXPECT_TRUE(memory->own().own_pages().empty());
    // What all programs change of states before the first step counts, too.
    for (Training* const one : {&copied, &replica}) {
      for (const auto& [parameter, state] : one->optimizer.state()) {
        dynamic_cast<DescribedState&>(*state).tensors[0].mul_(0.5);
      }
    }
    step_both(again);
  }
  if (world_size_ < 3) return;
  const ProcessGroup fewer = group_of(world_size_ - 1);
  copied.leave();
  if (is_last()) {
    group_.barrier();
    return;
  }
  copied.wrap(fewer, true);
  replica.wrap(fewer, false);
  EXPECT_EQ(memory_of(copied.module->factors), memory);
  step_both(3);
  group_.barrier();
}

// Memory of gradients, too: ranks that continue use theirs, a new rank that of one that was lost.
TEST_F(OneCopyKept, GradientsKeepTheirMemory) {
  NEEDS_SHARED_MEMORY();
  auto of_rank = std::make_unique<Training>(module_of(kParameterSizes));
  Training& training = *of_rank;
  training.wrap(group_, true);
  train_one(training, 0, 1);
  auto memory = memory_of(training.module->factors);
  const int slot = memory->gradients().own_slot();
  const std::uint64_t taken = taken_bytes(memory->gradients().file());
  EXPECT_GT(taken, 0U);
  // Not before all have asked.
  group_.barrier();
  training.leave();
  training.wrap(group_, true);
  EXPECT_EQ(memory->gradients().own_slot(), slot);
  train_one(training, 1, 2);
  group_.barrier();
  EXPECT_EQ(taken_bytes(memory->gradients().file()), taken);
  if (world_size_ < 3) return;
  // Rank 0 gives up what it has. The others have other numbers, and the slots that they had.
  training.leave();
  if (rank_ == 0) {
    of_rank.reset();
    memory.reset();
  }
  group_.barrier();
  std::vector<int> others(static_cast<std::size_t>(world_size_ - 1));
  std::iota(others.begin(), others.end(), 1);
  const ProcessGroup fewer = group_.new_group(others);
  if (rank_ > 0) {
    training.wrap(fewer, true);
    EXPECT_EQ(memory->gradients().own_slot(), slot);
    train_one(training, 2, 3);
    fewer.barrier();
    // That of rank 0 was given back.
    EXPECT_LT(taken_bytes(memory->gradients().file()), taken);
  }
  group_.barrier();
}

// A rank that was dismissed may still compute, and save what it has.
TEST_F(OneCopyKept, NobodyTakesTheSlotOfAProcessThatLives) {
  NEEDS_RANKS(3);
  NEEDS_SHARED_MEMORY();
  Training training(module_of(kParameterSizes));
  training.wrap(group_, true);
  train_one(training, 0, 1);
  const auto memory = memory_of(training.module->factors);
  const at::Tensor own = memory->gradients().allocate(50'000, at::kFloat).fill_(1 + rank_);
  const at::Tensor expected = at::full({50'000}, 1 + rank_, at::kFloat);
  training.leave();
  const ProcessGroup fewer = group_of(2);
  if (rank_ < 2) {
    // Rank 1 is another process there: what it had in the memory it holds still.
    auto kept = keep_memory(fewer, training.module->factors, /*source=*/0, rank_ == 1);
    ASSERT_TRUE(kept);
    if (rank_ == 1) kept->bind();
    training.wrap(fewer, true);
    EXPECT_EQ(memory_of(training.module->factors)->gradients().own_slot(),
              rank_ == 0 ? 0 : world_size_);
    backward(*training.model, 1);
    fewer.barrier();
  }
  group_.barrier();
  EXPECT_TRUE(at::equal(own, expected));
}

TEST_F(OneCopyKept, ARankThatReceivesTheStateAgainKeepsWhatLiesInItsSlot) {
  NEEDS_SHARED_MEMORY();
  Training training(module_of(kParameterSizes));
  training.wrap(group_, true);
  train_one(training, 0, 1);
  const at::Tensor own =
      memory_of(training.module->factors)->gradients().allocate(50'000, at::kFloat).fill_(1);
  const int slot = memory_of(training.module->factors)->gradients().own_slot();
  training.leave();
  auto kept = keep_memory(group_, training.module->factors, /*source=*/0, is_last());
  ASSERT_TRUE(kept);
  if (is_last()) kept->bind();
  training.wrap(group_, true);
  EXPECT_EQ(memory_of(training.module->factors)->gradients().own_slot() == slot, !is_last());
  backward(*training.model, 1);
  group_.barrier();
  EXPECT_TRUE(own.eq(1).all().item<bool>());
}

TEST_F(OneCopyKept, ARankThatComesNewMapsIt) {
  NEEDS_SHARED_MEMORY();
  const bool is_new = is_last();
  Training training(module_of(kParameterSizes));
  training.wrap(group_, true);
  train_one(training, 0, 2);
  training.leave();
  Training newcomer(module_of({3, 0, 1, 150'001, 64, 65, 1009, 70'000, 2}));
  Training& own = is_new ? newcomer : training;
  auto kept = keep_memory(group_, own.module->factors, /*source=*/0, is_new);
  ASSERT_TRUE(kept);
  const std::uint64_t id = memory_of(training.module->factors)->id();
  if (is_new) kept->bind();
  EXPECT_EQ(memory_of(own.module->factors)->id(), id);
  expect_same_bits(own.module->factors, training.module->factors);
  // What has changed nothing does not make pages of its own.
  EXPECT_TRUE(memory_of(own.module->factors)->own().own_pages().empty());
  EXPECT_TRUE(memory_of(own.module->factors)->is_kept());
}

TEST_F(OneCopyKept, OfARankThatHasChangedItIsNotKept) {
  NEEDS_SHARED_MEMORY();
  Training training(module_of(kParameterSizes));
  training.wrap(group_, true);
  train_one(training, 0, 1);
  const at::Tensor element = training.module->factors[3].detach().narrow(0, 5, 1);
  const float before = element.item<float>();
  if (is_last()) element.fill_(before + 1);
  training.leave();
  EXPECT_FALSE(keep_memory(group_, training.module->factors));
  // Restored: it is what all have.
  element.fill_(before);
  EXPECT_TRUE(keep_memory(group_, training.module->factors));
  EXPECT_TRUE(memory_of(training.module->factors)->own().own_pages().empty());
}

TEST_F(OneCopyKept, OfATornStepOrOtherParametersIsNotKept) {
  NEEDS_SHARED_MEMORY();
  Training training(module_of(kParameterSizes));
  training.wrap(group_, true);
  train_one(training, 0, 1);
  training.leave();
  Tensors parameters = training.module->factors;
  if (is_last()) std::swap(parameters[4], parameters[5]);
  EXPECT_FALSE(keep_memory(group_, parameters));
  EXPECT_TRUE(keep_memory(group_, training.module->factors));
  if (is_last()) memory_of(training.module->factors)->mark_torn();
  EXPECT_FALSE(keep_memory(group_, training.module->factors));
}

TEST_F(OneCopyKept, AReplacedOptimizerStaysReplaced) {
  NEEDS_SHARED_MEMORY();
  Training training(module_of(kParameterSizes));
  training.wrap(group_, true);
  train_one(training, 0, 1);
  AdamW second(training.module->factors, {.lr = 0.1});
  train(*training.model, second, 1, 2);
  training.leave();
  training.wrap(group_, true);
  backward(*training.model, 2);
  EXPECT_SAYS(message_of<UsageError>([&] { training.optimizer.step(); }),
              "was taken over by another optimizer");
  second.step();
}

TEST_F(OneCopyKept, AReplacedOptimizerStaysReplacedWhenTheOtherIsGone) {
  NEEDS_SHARED_MEMORY();
  Training training(module_of(kParameterSizes));
  training.wrap(group_, true);
  train_one(training, 0, 1);
  {
    AdamW second(training.module->factors, {.lr = 0.1});
    train(*training.model, second, 1, 2);
  }
  training.leave();
  training.wrap(group_, true);
  backward(*training.model, 2);
  EXPECT_SAYS(message_of<UsageError>([&] { training.optimizer.step(); }),
              "was taken over by another optimizer");
}

// A wrapper over some of the ranks, while the others still see the memory.
TEST_F(OneCopyKept, WhereNoRankHasLeftTheCopyAnotherIsMade) {
  NEEDS_SHARED_MEMORY();
  Training training(module_of(kParameterSizes));
  training.wrap(group_, true);
  train_one(training, 0, 1);
  const auto memory = memory_of(training.module->factors);
  training.model.reset();
  training.wrap(group_, true);
  EXPECT_NE(memory_of(training.module->factors), memory);
}

TEST_F(OneCopyKept, ARankThatIsLeftOutLearnsThatOthersHaveWritten) {
  NEEDS_RANKS(3);
  NEEDS_SHARED_MEMORY();
  Training training(module_of(kParameterSizes));
  training.wrap(group_, true);
  train_one(training, 0, 1);
  const ProcessGroup fewer = group_of(world_size_ - 1);
  training.leave();
  Tensors before;
  for (const at::Tensor& one : training.module->factors) before.push_back(one.detach().clone());
  if (!is_last()) {
    training.wrap(fewer, true);
    train_one(training, 1, 2);
    group_.barrier();
    return;
  }
  group_.barrier();
  EXPECT_FALSE(memory_of(training.module->factors)->is_current());
  EXPECT_FALSE(take_out_of_copies(training.module->factors, {&training.optimizer}));
}

TEST_F(OneCopyKept, TakenOutOfItNoOtherRankWritesToIt) {
  NEEDS_SHARED_MEMORY();
  Training training(module_of(kParameterSizes));
  training.wrap(group_, true);
  train_one(training, 0, 2);
  training.leave();
  Tensors before;
  for (const at::Tensor& one : training.module->factors) before.push_back(one.detach().clone());
  EXPECT_TRUE(take_out_of_copies(training.module->factors, {&training.optimizer}));
  expect_same_bits(training.module->factors, before);
  EXPECT_EQ(memory_of(training.module->factors), nullptr);
  for (const auto& [parameter, state] : training.optimizer.state()) {
    for (const at::Tensor& one : dynamic_cast<DescribedState&>(*state).tensors) {
      if (one.defined()) {
        EXPECT_EQ(CopyMemory::find(one.const_data_ptr()), nullptr);
      }
    }
  }
}

TEST_F(OneCopyKept, AGradientThatWasNotUsedGoesWithTheCopy) {
  NEEDS_SHARED_MEMORY();
  Training training(module_of(kParameterSizes));
  training.wrap(group_, true);
  backward(*training.model, 0);
  EXPECT_TRUE(training.module->factors[3].grad().is_meta());
  training.model.reset();
  EXPECT_FALSE(training.module->factors[3].grad().defined());
  training.module->factors[3].square().sum().backward();
  EXPECT_FALSE(training.module->factors[3].grad().is_meta());
}

// Comparing replicas does not read what all see: only what a program has changed.
TEST_F(OneCopyKept, ComparedParametersDifferByWhatARankHasChanged) {
  NEEDS_SHARED_MEMORY();
  Training training(module_of(kParameterSizes));
  training.wrap(group_, true);
  train_one(training, 0, 1);
  const std::uint64_t unchanged = hash_of_all(training.module->factors);
  train_one(training, 1, 2);
  EXPECT_EQ(hash_of_all(training.module->factors), unchanged);
  const at::Tensor element = training.module->factors[8].detach().narrow(0, 1, 1);
  const float before = element.item<float>();
  element.fill_(before + 1);
  EXPECT_NE(hash_of_all(training.module->factors), unchanged);
  element.fill_(before);
  EXPECT_EQ(hash_of_all(training.module->factors), unchanged);
  // Of a copy that was left other ranks may have other memory.
  training.leave();
  EXPECT_NE(hash_of_all(training.module->factors), unchanged);
}

}  // namespace
}  // namespace lockstep::testing
