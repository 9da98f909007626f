// Snapshots with Strategy::kFullyShard, and its Trainer: those of DistributedDataParallel.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/snapshot/internal/gathered_state.h"
#include "lockstep/snapshot/internal/value_tree.h"
#include "lockstep/snapshot/snapshot.h"
#include "tests/ranks/fully_shard/accelerator_fixture.h"

namespace lockstep::testing {
namespace {

/// With a folder that all ranks save to.
class FullyShardSnapshots : public FullyShardAccelerator {
 protected:
  AcceleratorOptions options_of(bool is_sharded, bool sharded_saves, bool asynchronous) const {
    return with_strategy({.directory = path_,
                          .keep_last = 9,
                          .asynchronous_saves = asynchronous,
                          .sharded_saves = sharded_saves},
                         is_sharded);
  }

  void remove_snapshots() const {
    group_.barrier();
    if (rank_ == 0) std::filesystem::remove_all(path_);
    group_.barrier();
  }

  std::filesystem::path newest() const {
    std::filesystem::path path;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (SnapshotName::parse(entry.path().filename().string())) {
        path = std::max(path, entry.path());
      }
    }
    return path;
  }

  /// Of the newest snapshot: model and optimizer.
  TensorDict saved_tensors() const {
    TensorDict tensors;
    const Snapshot snapshot = load_snapshot(newest());
    for (const auto& [name, tensor] : snapshot.model) tensors.emplace_back(name, tensor);
    visit_tensors(snapshot.optimizer, [&](const std::string& name, const at::Tensor& tensor) {
      tensors.emplace_back(name, tensor);
    });
    return tensors;
  }

  const FolderOfRanks folder_{group_, "fully-shard-"};
  const std::string path_ = folder_.path() + "/snapshots";
};

TEST_F(FullyShardSnapshots, SavesWhatReplicasSave) {
  for (const MakeUnitsOptimizer& make :
       {units_adamw(), units_nadam(), units_libtorch_adam(), units_libtorch_sgd()}) {
    for (const auto& [sharded_saves, asynchronous] :
         {std::pair(false, false), std::pair(false, true), std::pair(true, false),
          std::pair(true, true)}) {
      SCOPED_TRACE(::testing::Message() << sharded_saves << asynchronous);
      TensorDict saved[2];
      for (const bool is_sharded : {false, true}) {
        Accelerator accelerator(options_of(is_sharded, sharded_saves, asynchronous));
        UnitsTraining training(accelerator, make);
        training.train(1, [&] {  // What it has saved does not change any more.
          if (accelerator.steps() == 3) accelerator.save_state();
        });
        accelerator.wait_for_saves();
        accelerator.wait_for_everyone();
        saved[is_sharded ? 1 : 0] = saved_tensors();
        remove_snapshots();
      }
      ASSERT_EQ(saved[1].size(), saved[0].size());
      for (std::size_t i = 0; i < saved[0].size(); ++i) {
        EXPECT_EQ(saved[1][i].first, saved[0][i].first);
        EXPECT_EQ(saved[1][i].second.strides(), saved[0][i].second.strides());
        expect_equal(saved[1][i].second, saved[0][i].second, saved[0][i].first);
      }
    }
  }
}

TEST_F(FullyShardSnapshots, EitherStrategyGoesOnFromThoseOfTheOther) {
  for (const bool sharded_saves : {false, true}) {
    for (const MakeUnitsOptimizer& make : {units_adamw(), units_libtorch_adam()}) {
      Accelerator undisturbed(options_of(false, false, false));
      UnitsTraining whole(undisturbed, make);
      whole.train(2);
      for (const bool saved_sharded : {false, true}) {
        {
          Accelerator first(options_of(saved_sharded, sharded_saves, false));
          UnitsTraining training(first, make);
          training.train(1, [&] {
            if (first.steps() == 3) first.save_state();
          });
          first.wait_for_everyone();
        }
        for (const bool loaded_sharded : {false, true}) {
          if (!saved_sharded && !loaded_sharded) continue;
          SCOPED_TRACE(::testing::Message() << saved_sharded << loaded_sharded << sharded_saves);
          Accelerator resumed(options_of(loaded_sharded, sharded_saves, false));
          UnitsTraining training(resumed, make);
          ASSERT_TRUE(resumed.load_state());
          EXPECT_EQ(resumed.steps(), 3);
          training.train(2);
          training.losses = whole.losses;  // Those from before the snapshot are missing.
          expect_same(training, whole);
          EXPECT_EQ(training.seen.item<std::int64_t>(), 2 * 41);
        }
        remove_snapshots();
      }
    }
  }
}

/// With replicas of shards.
class HybridShardSnapshots : public FullyShardSnapshots {
 protected:
  AcceleratorOptions hybrid_options(HybridShard how, bool sharded_saves) const {
    AcceleratorOptions options = options_of(true, sharded_saves, false);
    options.fully_shard.hybrid_shard = how;
    return options;
  }

  std::uintmax_t saved_bytes() const {
    std::uintmax_t bytes = 0;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(newest().parent_path())) {
      if (entry.is_regular_file()) bytes += entry.file_size();
    }
    return bytes;
  }

  void train_and_save(const AcceleratorOptions& options) const {
    Accelerator accelerator(options);
    UnitsTraining training(accelerator, units_adamw());
    training.train(1, [&] {
      if (accelerator.steps() == 3) accelerator.save_state();
    });
    accelerator.wait_for_everyone();
  }
};

TEST_F(HybridShardSnapshots, AreThoseOfReplicasAndHaveEachShardOnce) {
  if (group_.backend_name() == "hierarchical" && world_size_ != 4)
    GTEST_SKIP() << "uneven machines";
  for (const bool sharded_saves : {false, true}) {
    train_and_save(options_of(false, sharded_saves, false));
    const TensorDict expected = saved_tensors();
    const std::uintmax_t bytes = saved_bytes();
    remove_snapshots();
    for (const auto how : {HybridShard::kShardInMachines, HybridShard::kReplicateInMachines}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(how) << sharded_saves);
      train_and_save(hybrid_options(how, sharded_saves));
      const TensorDict saved = saved_tensors();
      ASSERT_EQ(saved.size(), expected.size());
      for (std::size_t i = 0; i < saved.size(); ++i) {
        EXPECT_EQ(saved[i].first, expected[i].first);
        EXPECT_TRUE(at::allclose(saved[i].second, expected[i].second, 1e-3, 1e-5))
            << saved[i].first;
      }
      EXPECT_LT(saved_bytes(), bytes + bytes / 20);
      for (const auto next : {HybridShard::kNone, how}) {
        Accelerator resumed(hybrid_options(next, sharded_saves));
        UnitsTraining training(resumed, units_adamw());
        ASSERT_TRUE(resumed.load_state());
        EXPECT_EQ(resumed.steps(), 3);
        for (const auto& [name, value] : resumed.get_state_dict(*training.net)) {
          const auto same = std::ranges::find(saved, name, &TensorDict::value_type::first);
          ASSERT_NE(same, saved.end()) << name;
          EXPECT_TRUE(at::equal(value, same->second)) << name;
        }
        training.train(1);
        EXPECT_EQ(training.seen.item<std::int64_t>(), 41);
      }
      remove_snapshots();
    }
  }
}

TEST_F(FullyShardSnapshots, AreRefusedByAnotherModelAndChangeNothing) {
  Accelerator saving(options_of(true, false, false));
  UnitsTraining saved(saving, units_adamw());
  saved.train(1);
  saving.save_state();
  saving.wait_for_everyone();

  Accelerator other(options_of(true, false, false));
  torch::nn::Sequential net(torch::nn::Linear(4, 37));
  AdamW adamw(net->parameters());
  auto model = other.prepare(net);
  auto optimizer = other.prepare(adamw);
  const TensorDict before = other.get_state_dict(*net);
  const std::string message = message_of<UsageError>([&] { other.load_state(); });
  EXPECT_SAYS(message, "does not fit the model");
  EXPECT_SAYS(message, "'2.weight' is unexpected");
  const TensorDict after = other.get_state_dict(*net);
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(at::equal(after[i].second, before[i].second));
  }

  Accelerator with_sgd(options_of(true, false, false));
  UnitsTraining training(with_sgd, units_libtorch_sgd());
  EXPECT_SAYS(message_of<UsageError>([&] { with_sgd.load_state(); }), "SGD");
  saving.wait_for_everyone();
}

// Where a file cannot be made the rank still does its part of the gathers.
TEST_F(FullyShardSnapshots, AFolderThatCannotBeMadeIsAnErrorAndNoHang) {
  if (rank_ == 0) std::ofstream(path_) << "no directory";
  group_.barrier();
  auto model = fully_shard(make_units_net(), {.process_group = group_});
  AdamW adamw(model.parameters());
  const auto state = model.sharded().gathered_state(adamw);
  SnapshotDirectory whole(path_ + "/whole", {.process_group = group_});
  const auto save = [&](SnapshotDirectory& snapshots) { snapshots.save(*state, {.step = 1}); };
  if (rank_ == 0) {
    EXPECT_SAYS(message_of<SystemError>([&] { save(whole); }), path_);
  } else {
    save(whole);
  }
  SnapshotDirectory sharded(path_ + "/sharded", {.sharded_saves = true, .process_group = group_});
  EXPECT_SAYS(message_of<SystemError>([&] { save(sharded); }), path_);
  group_.barrier();
}

/// Three steps over a group, from its newest snapshot on, and what is saved then.
class FullyShardOtherRanks : public FullyShardSnapshots {
 protected:
  void step_and_save(const ProcessGroup& group, bool is_sharded, bool sharded_saves,
                     std::int64_t first_step) const {
    torch::nn::Sequential net = make_units_net();
    const auto train = [&](auto& model, torch::optim::Optimizer& optimizer, const auto& load,
                           const auto& save) {
      load();
      for (std::int64_t step = first_step; step < first_step + 3; ++step) {
        optimizer.zero_grad();
        const auto place = static_cast<double>(group.rank() + 5 * step);
        const at::Tensor inputs = (at::arange(20) * 0.3 + place).sin().view({5, 4});
        model.forward(inputs.to(at::kFloat)).square().mean().backward();
        optimizer.step();
      }
      save(SnapshotSaveOptions{.step = first_step + 3});
    };
    SnapshotDirectory snapshots(
        path_, {.keep_last = 9, .sharded_saves = sharded_saves, .process_group = group});
    if (is_sharded) {
      auto model =
          fully_shard(net, {.process_group = group,
                            .auto_wrap_policy = module_wrap_policy<torch::nn::LinearImpl>()});
      torch::optim::Adam adam(trained_of(net), 0.02);
      model.sharded().shard_optimizer(adam);
      const auto state = model.sharded().gathered_state(adam);
      train(
          model, adam, [&] { snapshots.load_latest(*state); },
          [&](const SnapshotSaveOptions& options) { snapshots.save(*state, options); });
    } else {
      DistributedDataParallel model(net, {.process_group = group});
      torch::optim::Adam adam(trained_of(net), 0.02);
      train(
          model, adam, [&] { snapshots.load_latest(*net, adam); },
          [&](const SnapshotSaveOptions& options) { snapshots.save(*net, adam, options); });
    }
    group.barrier();
  }
};

TEST_F(FullyShardOtherRanks, GoesOnWithTheBitsOfReplicas) {
  NEEDS_RANKS(2);
  std::vector<int> members;
  for (int rank = 0; rank + 1 < world_size_; ++rank) members.push_back(rank);
  const ProcessGroup fewer = group_.new_group(members);
  for (const bool sharded_saves : {false, true}) {
    TensorDict saved[2];
    for (const bool is_sharded : {false, true}) {
      step_and_save(group_, is_sharded, sharded_saves, 0);
      if (fewer) step_and_save(fewer, is_sharded, sharded_saves, 3);
      group_.barrier();
      step_and_save(group_, is_sharded, sharded_saves, 6);
      EXPECT_EQ(load_snapshot(newest()).step, 9);
      saved[is_sharded ? 1 : 0] = saved_tensors();
      remove_snapshots();
    }
    ASSERT_EQ(saved[1].size(), saved[0].size());
    for (std::size_t i = 0; i < saved[0].size(); ++i) {
      EXPECT_EQ(saved[1][i].first, saved[0][i].first);
      expect_equal(saved[1][i].second, saved[0][i].second, saved[0][i].first);
    }
  }
}

class FullyShardTrainer : public TrainerTest {
 protected:
  TrainerOptions options_of(const char* max_duration, const std::string& name,
                            bool is_sharded) const {
    TrainerOptions made = options(max_duration, name);
    made.strategy = is_sharded ? Strategy::kFullyShard : Strategy::kDdp;
    return made;
  }
  at::Tensor weights_of(const std::string& name) const {
    const SnapshotDirectory snapshots(path_ + "/" + name + "/snapshots");
    return snapshots.read_latest()->model[0].second;
  }
};

TEST_F(FullyShardTrainer, HasTheBitsOfReplicasAndGoesOnFromItsSnapshots) {
  // Where sums have one order, to the bit.
  const double tolerance = group_.shares_memory() || world_size_ <= 2 ? 0 : 1e-4;
  const auto expect_close = [&](const at::Tensor& actual, const at::Tensor& expected) {
    EXPECT_TRUE(at::allclose(actual, expected, tolerance, tolerance)) << actual << expected;
  };
  const auto fit = [&](const TrainerOptions& options) {
    Line task;
    Trainer trainer(options);
    trainer.add(ModelCheckpoint());
    trainer.add(ThroughputMonitor());
    const FitResult result = trainer.fit(task, numbered(), numbered());
    group_.barrier();
    return result;
  };
  const FitResult expected = fit(options_of("3ep", "replicas", false));
  const FitResult result = fit(options_of("3ep", "shards", true));
  EXPECT_NEAR(*find_metric(result.metrics, "train_loss"),
              *find_metric(expected.metrics, "train_loss"), tolerance);
  EXPECT_NEAR(*find_metric(result.metrics, "grad_norm"),
              *find_metric(expected.metrics, "grad_norm"), 1e-4);
  expect_close(weights_of("shards"), weights_of("replicas"));
  fit(options_of("4ba", "parts", true));
  fit(options_of("9ba", "parts", false));
  fit(options_of("3ep", "parts", true));
  expect_close(weights_of("parts"), weights_of("replicas"));
  Line task;
  Trainer trainer(options_of("3ep", "shards", true));
  trainer.add(ModelCheckpoint());
  Trainer other(options_of("3ep", "replicas", false));
  other.add(ModelCheckpoint());
  for (const char* which : {"last", "best"}) {
    const Metrics ours = trainer.test(task, numbered(), {.ckpt_path = which});
    const Metrics theirs = other.test(task, numbered(), {.ckpt_path = which});
    EXPECT_NEAR(*find_metric(ours, "test_loss"), *find_metric(theirs, "test_loss"), tolerance);
  }
}

TEST_F(FullyShardTrainer, RefusesWhatItCannotDo) {
  Line task;
  Trainer trainer(options_of("1ep", "run", true));
  EXPECT_SAYS(message_of<UsageError>([&] { trainer.find_batch_size(task, numbered()); }),
              "find_batch_size");
  trainer.add(EmaCallback({.decay = 0.5}));
  EXPECT_SAYS(message_of<UsageError>([&] { trainer.fit(task, numbered()); }), "EmaCallback");
}

}  // namespace
}  // namespace lockstep::testing
