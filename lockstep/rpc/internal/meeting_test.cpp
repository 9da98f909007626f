#include "lockstep/rpc/internal/meeting.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::rpc {
namespace {

const c10::Device kCuda0("cuda:0");
const c10::Device kCuda1("cuda:1");

std::string refusal(const std::vector<WorkerDescription>& cards) {
  try {
    check_cards(cards);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(RpcMeeting, CardsThatCannotBeAreRefused) {
  EXPECT_EQ(refusal({{"a", {}}, {"b", {{"a", {{kCuda0, kCuda1}}}}}}), "");
  EXPECT_EQ(refusal({{"a", {}}, {"a", {}}}),
            "rpc::init: ranks 0 and 1 are both named 'a'; give each its own name");
  EXPECT_NE(refusal({{"", {}}}), "");
  EXPECT_NE(refusal({{std::string(129, 'x'), {}}}), "");
  EXPECT_EQ(refusal({{"a", {{"c", {}}}}}),
            "rpc::init: worker 'a' has a device map for 'c', which is no worker");
  EXPECT_NE(refusal({{"a", {{"a", {{c10::Device("cpu"), kCuda0}}}}}}), "");
  EXPECT_NE(refusal({{"a", {{"a", {{kCuda0, kCuda1}, {kCuda1, kCuda1}}}}}}), "");
}

TEST(RpcMeeting, WhatCameGoesBackTheSameWay) {
  const std::vector<WorkerDescription> cards{{"a", {{"b", {{kCuda0, kCuda1}}}}}, {"b", {}}};
  const DevicePlan of_a = plan_devices(cards, 0);
  EXPECT_TRUE(of_a.reverse.empty());
  EXPECT_EQ(of_a.devices, std::vector<c10::Device>{kCuda0});
  const DevicePlan of_b = plan_devices(cards, 1);
  EXPECT_EQ(of_b.reverse.at("a").at(kCuda1), kCuda0);
  EXPECT_EQ(of_b.devices, std::vector<c10::Device>{kCuda1});
}

}  // namespace
}  // namespace lockstep::rpc
