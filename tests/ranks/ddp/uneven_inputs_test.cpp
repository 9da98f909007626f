#include "lockstep/ddp/uneven_inputs.h"

#include <array>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/samplers/sequential.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/data/data_loader.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/hooks.h"
#include "lockstep/nn/convert_sync_batchnorm.h"
#include "tests/ranks/ddp_fixture.h"
#include "tests/ranks/fixture.h"

namespace lockstep::testing {
namespace {

struct UnevenNetImpl : torch::nn::Module {
  explicit UnevenNetImpl(bool with_norm = false) : with_norm_(with_norm) {
    first = register_module("first", torch::nn::Linear(5, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    last = register_module("last", torch::nn::Linear(8, 3));
    if (!with_norm) {
      for (at::Tensor& parameter : norm->parameters()) parameter.requires_grad_(false);
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = first(x);
    if (with_norm_) y = norm(y);
    return last(at::tanh(y));
  }
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear last{nullptr};

 private:
  bool with_norm_;
};
TORCH_MODULE(UnevenNet);

using UnevenModel = DistributedDataParallel<UnevenNetImpl>;
using Batch = torch::data::Example<>;

class UnevenInputsTest : public DdpTest {
 protected:
  // Rank r has batches of these sizes: counts[r % 4].
  const std::vector<std::vector<std::int64_t>> counts_ = {{3, 4, 2}, {}, {5, 2, 4, 2, 3}, {2}};

  static Batch batch(int rank, std::size_t number, std::int64_t size) {
    const double phase = 10 * rank + static_cast<double>(number);
    return {at::sin(at::arange(size * 5, at::kFloat) + phase).view({size, 5}),
            at::cos(at::arange(size * 3, at::kFloat) + phase).view({size, 3})};
  }
  std::vector<Batch> batches_of(int rank) const {
    std::vector<Batch> batches;
    const auto& sizes = counts_[static_cast<std::size_t>(rank) % 4];
    for (std::size_t i = 0; i < sizes.size(); ++i) batches.push_back(batch(rank, i, sizes[i]));
    return batches;
  }
  std::size_t most_batches() const {
    std::size_t most = 0;
    for (int rank = 0; rank < world_size_; ++rank) most = std::max(most, batches_of(rank).size());
    return most;
  }
  static at::Tensor loss_of(const at::Tensor& outputs, const at::Tensor& targets) {
    return at::mse_loss(outputs, targets);
  }

  // One process that trains on what all ranks have, step by step.
  void train_whole(UnevenNet& whole, int steps_batches) const {
    torch::optim::SGD optimizer(whole->parameters(), 0.1);
    const auto group = static_cast<std::size_t>(steps_batches);
    for (std::size_t first = 0; first < most_batches(); first += group) {
      std::vector<at::Tensor> inputs;
      std::vector<at::Tensor> targets;
      for (int rank = 0; rank < world_size_; ++rank) {
        const auto batches = batches_of(rank);
        for (std::size_t i = first; i < std::min(first + group, batches.size()); ++i) {
          inputs.push_back(batches[i].data);
          targets.push_back(batches[i].target);
        }
      }
      optimizer.zero_grad();
      loss_of(whole(at::cat(inputs)), at::cat(targets)).backward();
      optimizer.step();
    }
  }

  void expect_same_state(const torch::nn::Module& actual, const torch::nn::Module& expected) {
    for (std::size_t i = 0; i < expected.parameters().size(); ++i) {
      EXPECT_TRUE(at::allclose(actual.parameters()[i], expected.parameters()[i], 1e-4, 1e-6)) << i;
    }
    for (std::size_t i = 0; i < expected.buffers().size(); ++i) {
      EXPECT_TRUE(at::allclose(actual.buffers()[i], expected.buffers()[i], 1e-4, 1e-6)) << i;
    }
    EXPECT_TRUE(same_bits_everywhere(actual.parameters()));
  }
};

TEST_F(UnevenInputsTest, EqualOneProcessOnAllThatThereIs) {
  for (const bool with_hook : {false, true}) {
    UnevenModel model(UnevenNet(),
                      {.comm_hook = with_hook ? std::make_shared<AllReduceHook>() : nullptr});
    UnevenNet whole;
    copy_state(*model, *whole);
    train_whole(whole, 1);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    const std::vector<Batch> own = batches_of(rank_);
    std::size_t steps = 0;
    std::size_t with_data = 0;
    auto batches = model.join(own);
    for (Batch& item : batches) {
      ++steps;
      with_data += batches.has_data() ? 1 : 0;
      EXPECT_EQ(batches.has_data(), item.data.size(0) > 0);
      EXPECT_EQ(item.data.size(1), 5);
      optimizer.zero_grad();
      model.backward(loss_of(model(item.data), item.target),
                     {.weight = static_cast<double>(item.data.size(0))});
      optimizer.step();
    }
    EXPECT_EQ(steps, most_batches());
    EXPECT_EQ(with_data, own.size());
    expect_same_state(*model, *whole);
  }
}

// Without weights: the mean over the ranks that have a batch, of losses with terms of the
// parameters alone, one of them next to what is NaN without samples.
TEST_F(UnevenInputsTest, BatchesWithoutSamplesAddNothing) {
  struct RegularizedImpl : torch::nn::Module {
    RegularizedImpl() {
      layer = register_module("layer", torch::nn::Linear(5, 3));
      scale = register_parameter("scale", at::full({1}, 0.5));
    }
    at::Tensor forward(const at::Tensor& x) { return layer(x); }
    at::Tensor loss(const at::Tensor& outputs, const at::Tensor& targets) const {
      return (at::mse_loss(outputs, targets) * at::exp(-scale) + scale).sum() +
             0.5 * layer->weight.square().sum();
    }
    torch::nn::Linear layer{nullptr};
    at::Tensor scale;
  };
  for (const bool weighted : {false, true}) {
    for (const bool with_hook : {false, true}) {
      const auto plain = std::make_shared<RegularizedImpl>();
      DistributedDataParallel model(
          std::make_shared<RegularizedImpl>(),
          {.comm_hook = with_hook ? std::make_shared<AllReduceHook>() : nullptr});
      copy_state(*model, *plain);
      const std::vector<Batch> own = batches_of(rank_);
      std::size_t step = 0;
      auto batches = model.join(own);
      for (Batch& item : batches) {
        model->zero_grad();
        const at::Tensor loss = model->loss(model(item.data), item.target);
        // A weight that does not know that there are no samples.
        weighted ? model.backward(loss, {.weight = 1}) : loss.backward();
        plain->zero_grad();
        double with_data = 0;
        for (int rank = 0; rank < world_size_; ++rank) {
          const auto theirs = batches_of(rank);
          if (step >= theirs.size()) continue;
          plain->loss(plain->forward(theirs[step].data), theirs[step].target).backward();
          ++with_data;
        }
        for (const at::Tensor& parameter : plain->parameters()) {
          parameter.mutable_grad() = parameter.grad() / with_data;
        }
        expect_close_gradients(model->parameters(), plain->parameters());
        ++step;
      }
      EXPECT_EQ(step, most_batches());
      // After the last batch all ranks' passes count again.
      model->zero_grad();
      plain->zero_grad();
      (model(at::ones({1, 5})).sum()).backward();
      (plain->forward(at::ones({1, 5})).sum()).backward();
      EXPECT_TRUE(at::allclose(model->layer->weight.grad(), plain->layer->weight.grad()));
    }
  }
}

TEST_F(UnevenInputsTest, GoWithSyncBatchNorm) {
  UnevenNet module(true);
  convert_sync_batchnorm(*module);
  UnevenModel model(module);
  UnevenNet whole(true);
  copy_state(*model, *whole);
  train_whole(whole, 1);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  const std::vector<Batch> own = batches_of(rank_);
  auto batches = model.join(own);
  for (Batch& item : batches) {
    optimizer.zero_grad();
    model.backward(loss_of(model(item.data), item.target),
                   {.weight = static_cast<double>(item.data.size(0))});
    optimizer.step();
  }
  expect_same_state(*model, *whole);
}

TEST_F(UnevenInputsTest, GoWithAccumulation) {
  for (const int gradient_accumulation_steps : {2, 3, 7}) {
    UnevenModel model{UnevenNet()};
    UnevenNet whole;
    copy_state(*model, *whole);
    train_whole(whole, gradient_accumulation_steps);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    const std::vector<Batch> own = batches_of(rank_);
    auto batches = model.join(own, {.gradient_accumulation_steps = gradient_accumulation_steps});
    for (Batch& item : batches) {
      bool is_last = false;
      {
        const auto accumulation = batches.accumulate();
        is_last = batches.is_last();
        model.backward(loss_of(model(item.data), item.target),
                       {.weight = static_cast<double>(item.data.size(0))});
      }
      if (!is_last) continue;
      optimizer.step();
      optimizer.zero_grad();
    }
    expect_same_state(*model, *whole);
  }
}

TEST_F(UnevenInputsTest, WithoutWeightsTheMeanIsOverRanksThatHaveABatch) {
  UnevenModel model{UnevenNet()};
  const std::vector<Batch> own = batches_of(rank_);
  std::size_t step = 0;
  auto batches = model.join(own);
  for (Batch& item : batches) {
    UnevenNet plain;
    copy_state(*model, *plain);
    model->zero_grad();
    loss_of(model(item.data), item.target).backward();
    double holders = 0;
    for (int rank = 0; rank < world_size_; ++rank) {
      const auto theirs = batches_of(rank);
      if (step >= theirs.size()) continue;
      ++holders;
      loss_of(plain(theirs[step].data), theirs[step].target).backward();
    }
    for (at::Tensor& parameter : plain->parameters()) {
      if (parameter.grad().defined()) parameter.mutable_grad() = parameter.grad() / holders;
    }
    expect_close_gradients(model->parameters(), plain->parameters());
    ++step;
  }
  EXPECT_EQ(step, most_batches());
}

TEST_F(UnevenInputsTest, AStepThatExchangesNothingIsVotedOnAllTheSame) {
  UnevenModel model{UnevenNet()};
  const std::vector<Batch> own = batches_of(rank_);
  std::size_t steps = 0;
  for (const Batch& item : model.join(own)) {
    steps += item.data.defined() ? 1 : 0;
    if (steps % 2 == 0) loss_of(model(item.data), item.target).backward();
  }
  EXPECT_EQ(steps, most_batches());
}

TEST_F(UnevenInputsTest, TakesLoadersAndBatchesOfOtherKinds) {
  UnevenModel model{UnevenNet()};
  const std::int64_t samples = 3 * rank_;  // none on rank 0
  auto dataset = torch::data::datasets::TensorDataset(at::ones({samples, 5}))
                     .map(torch::data::transforms::Stack<torch::data::TensorExample>());
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      std::move(dataset), torch::data::DataLoaderOptions(2));
  std::int64_t steps = 0;
  for (auto& item : model.join(*loader)) {
    model(item.data).sum().backward();
    ++steps;
  }
  EXPECT_EQ(steps, (3 * (world_size_ - 1) + 1) / 2);

  using Pair = std::pair<at::Tensor, std::array<at::Tensor, 2>>;
  std::vector<Pair> pairs(static_cast<std::size_t>(rank_),
                          Pair(at::ones({2, 5}), {at::ones({2}, at::kLong), at::ones({2, 1, 1})}));
  steps = 0;
  for (auto& [x, others] : model.join(pairs)) {
    EXPECT_EQ(others[0].scalar_type(), at::kLong);
    EXPECT_EQ(others[1].dim(), 3);
    model(x).sum().backward();
    ++steps;
  }
  EXPECT_EQ(steps, world_size_ - 1);
}

struct PhaseRows : torch::data::datasets::Dataset<PhaseRows, Batch> {
  explicit PhaseRows(std::int64_t rows)
      : inputs(at::sin(at::arange(rows * 5, at::kFloat)).view({rows, 5})),
        targets(at::cos(at::arange(rows * 3, at::kFloat)).view({rows, 3})) {}
  Batch get(std::size_t index) override {
    const auto row = static_cast<std::int64_t>(index);
    return {inputs[row], targets[row]};
  }
  std::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(inputs.size(0));
  }
  at::Tensor inputs;
  at::Tensor targets;
};

// A padding sample of the loader is an empty batch here, so that each sample counts once.
TEST_F(UnevenInputsTest, FollowThePlanOfADataLoader) {
  for (const std::int64_t rows : {1, 2, 9, 13}) {
    for (const int accumulated : {1, 2}) {
      SCOPED_TRACE(::testing::Message() << rows << " rows, " << accumulated << " accumulated");
      UnevenModel model{UnevenNet()};
      UnevenNet whole;
      copy_state(*model, *whole);
      const PhaseRows all(rows);
      const std::int64_t of_step = 2 * world_size_ * accumulated;
      torch::optim::SGD sgd(whole->parameters(), 0.1);
      for (std::int64_t first = 0; first < rows; first += of_step) {
        const std::int64_t size = std::min(of_step, rows - first);
        sgd.zero_grad();
        loss_of(whole(all.inputs.narrow(0, first, size)), all.targets.narrow(0, first, size))
            .backward();
        sgd.step();
      }

      torch::optim::SGD optimizer(model.parameters(), 0.1);
      DataLoader loader(PhaseRows(rows).map(torch::data::transforms::Stack<>()),
                        {.batch_size = 2, .shuffle = false});
      const at::Tensor seen = at::zeros({1}, at::kLong);
      auto batches = model.join(loader, {.gradient_accumulation_steps = accumulated});
      for (Batch& item : batches) {
        EXPECT_EQ(batches.has_data(), item.data.size(0) > 0);
        EXPECT_EQ(loader.position()->samples(), item.data.size(0)) << "it is read ahead";
        seen.add_(item.data.size(0));
        {
          const auto accumulation = batches.accumulate();
          model.backward(loss_of(model(item.data), item.target),
                         {.weight = static_cast<double>(item.data.size(0))});
        }
        if (!batches.is_last()) continue;
        optimizer.step();
        optimizer.zero_grad();
      }
      group_.all_reduce(seen);
      EXPECT_EQ(seen.item<std::int64_t>(), rows);
      EXPECT_EQ(loader.epoch(), 1);
      expect_same_state(*model, *whole);
      model->zero_grad();
      model(at::full({1, 5}, rank_ + 1.0)).sum().backward();
      EXPECT_TRUE(same_bits_everywhere({model->first->weight.grad()})) << "all count again";
    }
  }
}

// The plan of a loader says nothing of other ranks' loaders.
TEST_F(UnevenInputsTest, AskHowManyBatchesRanksHaveWithLoadersOfTheirOwn) {
  ProcessGroup alone;
  for (int rank = 0; rank < world_size_; ++rank) {
    const ProcessGroup one = group_.new_group({rank});
    if (rank == rank_) alone = one;
  }
  UnevenModel model{UnevenNet()};
  DataLoader loader(PhaseRows(2 * (rank_ + 1)).map(torch::data::transforms::Stack<>()),
                    {.batch_size = 2, .shuffle = false, .process_group = alone});
  int with_data = 0, steps = 0;
  auto batches = model.join(loader);
  for (Batch& item : batches) {
    if (batches.has_data()) ++with_data;
    ++steps;
    model.backward(loss_of(model(item.data), item.target),
                   {.weight = static_cast<double>(item.data.size(0))});
  }
  EXPECT_EQ(with_data, rank_ + 1);
  EXPECT_EQ(steps, world_size_);
}

TEST_F(UnevenInputsTest, AreGoneThroughOnce) {
  UnevenModel model{UnevenNet()};
  const std::vector<Batch> own = batches_of(rank_);
  auto batches = model.join(own);
  const auto pass = [&](auto& all) {
    std::size_t steps = 0;
    for (const Batch& item : all) {
      loss_of(model(item.data), item.target).backward();
      ++steps;
    }
    return steps;
  };
  EXPECT_EQ(pass(batches), most_batches());
  EXPECT_SAYS(message_of<UsageError>([&] { pass(batches); }), "call join() again");
  auto another = model.join(own);
  EXPECT_EQ(pass(another), most_batches());
}

struct Opaque5 {
  at::Tensor x;
};

TEST_F(UnevenInputsTest, BatchesThatAreNotKnownNeedAnEmptyOne) {
  UnevenModel model{UnevenNet()};
  const std::vector<Opaque5> own(static_cast<std::size_t>(rank_), Opaque5{at::ones({2, 5})});
  EXPECT_SAYS(message_of<UsageError>([&] { model.join(own); }), "set the option `empty`");
  int steps = 0;
  for (auto& item : model.join(own, {.empty = [] { return Opaque5{at::ones({0, 5})}; }})) {
    model(item.x).sum().backward();
    ++steps;
  }
  EXPECT_EQ(steps, world_size_ - 1);
  EXPECT_SAYS(message_of<UsageError>([&] {
                const std::vector<Batch> none;
                model.join(none, {.gradient_accumulation_steps = 0});
              }),
              "gradient_accumulation_steps=0");
}

}  // namespace
}  // namespace lockstep::testing
