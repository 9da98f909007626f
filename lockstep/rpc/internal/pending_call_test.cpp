#include "lockstep/rpc/internal/pending_call.h"

#include <chrono>

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::rpc {
namespace {

TEST(PendingCall, KeepsItsArgumentsNoLongerThanUntilTheAnswer) {
  const at::Tensor argument = at::ones({3});
  auto answer = c10::make_intrusive<c10::ivalue::Future>(c10::AnyType::get());
  PendingCall call({}, 1, "a call", std::chrono::seconds(1), answer, {argument});
  answer->markCompleted(c10::IValue(1));
  EXPECT_EQ(argument.use_count(), 2U);
  EXPECT_THROW(call.wait(), UsageError) << "there is no worker any more";
  EXPECT_EQ(argument.use_count(), 1U);
}

}  // namespace
}  // namespace lockstep::rpc
