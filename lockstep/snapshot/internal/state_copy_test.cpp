#include "lockstep/snapshot/internal/state_copy.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/snapshot/internal/snapshot_testing.h"
#include "lockstep/snapshot/pickle/pickled.h"
#include "lockstep/snapshot/save.h"

namespace lockstep::testing {
namespace {

c10::IValue copied(StateCopy& copy, const TensorDict& tensors) {
  return copy.take(writable_value(tensor_dict_value(tensors))).tree;
}

at::Tensor tensor_of(const c10::IValue& value, const std::string& name) {
  return find_value(value, name).toTensor();
}

TEST(StateCopy, DoesNotChangeWithItsSourceAndKeepsStridesAndSharing) {
  const at::Tensor base = at::arange(12);
  const TensorDict tensors{{"base", base},
                           {"part", base.slice(0, 2, 10, 3)},
                           {"matrix", base.view({3, 4}).t()},
                           {"bits", at::ones({3}).view(at::kInt)},
                           {"empty", at::empty({0, 2})}};
  const at::Tensor expected = base.clone();
  StateCopy copy;
  const c10::IValue value = copied(copy, tensors);
  base.fill_(-1);
  EXPECT_TRUE(same_bits(tensor_of(value, "base"), expected));
  EXPECT_TRUE(same_bits(tensor_of(value, "part"), expected.slice(0, 2, 10, 3)));
  EXPECT_TRUE(same_bits(tensor_of(value, "matrix"), expected.view({3, 4}).t()));
  EXPECT_TRUE(tensor_of(value, "base").is_alias_of(tensor_of(value, "part")));
}

TEST(StateCopy, UsesItsMemoryAgain) {
  const TensorDict tensors{{"a", at::ones({100})}, {"b", at::ones({50})}};
  StateCopy copy;
  const void* const first = tensor_of(copied(copy, tensors), "a").const_data_ptr();
  tensors[0].second.fill_(2);
  const c10::IValue again = copied(copy, tensors);
  EXPECT_EQ(tensor_of(again, "a").const_data_ptr(), first);
  EXPECT_EQ(tensor_of(again, "a").sum().item().toDouble(), 200);
  const c10::IValue larger = copied(copy, {{"a", at::ones({101})}});
  EXPECT_EQ(tensor_of(larger, "a").numel(), 101);
}

TEST(StateCopy, ATensorThatHasShrunkLeavesNothingOfTheOldOne) {
  StateCopy copy;
  copied(copy, {{"a", at::ones({100})}});
  const c10::IValue smaller = copied(copy, {{"a", at::ones({7})}});
  // A file has whole storages.
  EXPECT_EQ(tensor_of(smaller, "a").storage().nbytes(), 7 * sizeof(float));
}

TEST(StateCopy, WhatNobodyElseHoldsIsNotCopied) {
  c10::impl::GenericList list = make_list();
  at::Tensor made = at::ones({8});
  const void* const address = made.const_data_ptr();
  list.push_back(std::move(made));
  made.reset();
  StateCopy copy;
  const c10::IValue value = copy.take(list).tree;
  EXPECT_EQ(value.toListRef()[0].toTensor().const_data_ptr(), address);
}

}  // namespace
}  // namespace lockstep::testing
