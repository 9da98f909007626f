// What tests of one copy per machine train, and how they compare it to replicas: the same model and
// optimizer without the option, to the bit.
#pragma once

#include <cstring>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "tests/ranks/factors.h"
#include "tests/ranks/fixture.h"

// Where no ranks share memory the option is refused, or has no effect.
#define NEEDS_COPIES()                                                 \
  NEEDS_RANKS(2);                                                      \
  if (!lockstep::has_shared_copies(lockstep::default_process_group())) \
  GTEST_SKIP() << "needs ranks that share memory"
// All of them.
#define NEEDS_SHARED_MEMORY()                             \
  NEEDS_RANKS(2);                                         \
  if (!lockstep::default_process_group().shares_memory()) \
  GTEST_SKIP() << "needs ranks that share memory"

namespace lockstep::testing {

using FactorsModel = DistributedDataParallel<FactorsImpl>;

// Below and above what is copied, in parts that no rank has, in one part, in many; odd and prime.
inline const Sizes kParameterSizes = {3, 0, 1, 150'001, 64, 65, 1009, 70'000, 2};

class OneCopy : public Conformance {
 protected:
  using Model = FactorsModel;

  static Factors module_of(const Sizes& sizes, at::ScalarType dtype = at::kFloat) {
    Factors module(sizes);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const at::Tensor start = at::arange(sizes[i], at::kDouble) * (0.1 + static_cast<double>(i));
      module->factors[i].set_data(start.sin().to(dtype));
    }
    return module;
  }
  static Model model_of(bool one_copy, const Sizes& sizes = kParameterSizes,
                        at::ScalarType dtype = at::kFloat) {
    return Model(module_of(sizes, dtype).ptr(), {.one_copy_per_machine = one_copy});
  }

  /// What the gradients of this rank are in a step. One parameter is used by the last rank alone,
  /// one by none.
  Tensors factors_of(int step, const Sizes& sizes = kParameterSizes) const {
    Tensors factors;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const bool is_left_out = (i == 5 && rank_ != world_size_ - 1) || (i == 6 && step % 2 == 0);
      const at::Tensor factor =
          at::sin(at::arange(sizes[i], at::kDouble) * (rank_ + 1) + step + 0.5);
      factors.push_back(is_left_out ? at::Tensor() : factor);
    }
    return factors;
  }

  static ::testing::AssertionResult same_bits(const at::Tensor& a, const at::Tensor& b) {
    if (a.defined() != b.defined()) return ::testing::AssertionFailure() << "one is undefined";
    if (!a.defined()) return ::testing::AssertionSuccess();
    const at::Tensor left = a.detach().contiguous();
    const at::Tensor right = b.detach().contiguous();
    if (left.sizes() != right.sizes() || left.scalar_type() != right.scalar_type()) {
      return ::testing::AssertionFailure() << "of another kind";
    }
    if (left.numel() == 0 ||
        std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure()
           << "up to " << (left.to(at::kDouble) - right.to(at::kDouble)).abs().max().item<double>();
  }
  static void expect_same_bits(const Tensors& actual, const Tensors& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(same_bits(actual[i], expected[i])) << "tensor " << i;
    }
  }
  void expect_same_model(const Model& model, const Model& replica) const {
    expect_same_bits(model.parameters(), replica.parameters());
  }

  static void expect_same_state(const torch::optim::Optimizer& optimizer,
                                const torch::optim::Optimizer& other) {
    const auto states = [](const torch::optim::Optimizer& of) {
      return optimizer_state_dict(of).toGenericDict().at("state").toGenericDict();
    };
    const auto state = states(optimizer);
    const auto expected = states(other);
    ASSERT_EQ(state.size(), expected.size());
    for (const auto& item : expected) {
      const auto values = state.at(item.key()).toGenericDict();
      for (const auto& value : item.value().toGenericDict()) {
        SCOPED_TRACE(value.key().toStringRef());
        if (!value.value().isTensor()) continue;
        EXPECT_TRUE(same_bits(values.at(value.key()).toTensor(), value.value().toTensor()));
      }
    }
  }

  void backward(Model& model, int step) const { model(factors_of(step)).backward(); }
  template <class Optimizer>
  void train(Model& model, Optimizer& optimizer, int first, int last) const {
    for (int step = first; step < last; ++step) {
      optimizer.zero_grad();
      backward(model, step);
      optimizer.step();
    }
  }

  template <class Optimizer, class Options>
  void expect_bits_of_replicas(const Options& options, at::ScalarType dtype = at::kFloat) const {
    SCOPED_TRACE(c10::toString(dtype));
    Model model = model_of(true, kParameterSizes, dtype);
    Model replica = model_of(false, kParameterSizes, dtype);
    Optimizer optimizer(model->parameters(), options);
    Optimizer other(replica->parameters(), options);
    for (int step = 0; step < 4; ++step) {
      train(model, optimizer, step, step + 1);
      train(replica, other, step, step + 1);
      expect_same_model(model, replica);
      Options changed = optimizer.options();
      changed.lr *= 0.5;
      optimizer.set_options(changed);
      other.set_options(changed);
    }
    expect_same_state(optimizer, other);
    EXPECT_TRUE(same_bits_everywhere(model.parameters()));
  }
};

}  // namespace lockstep::testing
