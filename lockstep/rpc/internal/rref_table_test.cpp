#include "lockstep/rpc/internal/rref_table.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::rpc {
namespace {

constexpr int kOwner = 0;
constexpr int kHolder = 1;
constexpr int kGone = 2;
constexpr RRefKey kKey{.owner = kOwner, .creator = kOwner, .number = 7};

// What one thread does for a worker between another's finding that it is lost and the first's
// noticing that: the value must not stay for good.
TEST(RRefTable, NobodyHoldsAValueForAWorkerThatIsGone) {
  RRefTable table;
  table.expect(kKey, kHolder);
  table.insert(kKey, 3);
  table.note_gone(kGone);
  table.hold(kKey, kGone);
  EXPECT_EQ(table.value(kKey).toInt(), 3);
  table.release(kKey, kHolder);
  EXPECT_THROW(table.value(kKey), UsageError);
}

TEST(RRefTable, AValueThatAWorkerAskedForIsNotKeptWhenItIsGone) {
  RRefTable table;
  table.note_gone(kGone);
  table.expect(kKey, kGone);
  table.insert(kKey, 3);
  EXPECT_THROW(table.value(kKey), UsageError);
}

TEST(RRefTable, WhatAWorkerHeldGoesWithIt) {
  RRefTable table;
  table.expect(kKey, kGone);
  table.insert(kKey, 3);
  table.hold(kKey, kGone);
  table.hold(kKey, kHolder);
  table.note_gone(kGone);
  EXPECT_EQ(table.value(kKey).toInt(), 3);
  table.release(kKey, kHolder);
  EXPECT_THROW(table.value(kKey), UsageError);
}

}  // namespace
}  // namespace lockstep::rpc
