#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/comm/internal/gloo_pair_testing.h"
#include "lockstep/rpc/internal/local_meeting.h"
#include "lockstep/rpc/internal/meeting.h"
#include "lockstep/rpc/rpc.h"
#include "tests/ranks/fixture.h"

namespace lockstep {
namespace {

struct LeftByCaller : Error {
  LeftByCaller() : Error("given up") {}
};

// Of ranks 0 and 1, over another group than the default one.
ProcessGroup pair_that_asks(int rank, std::function<void()> while_waiting) {
  return gloo_pair(
      rank, c10::make_intrusive<c10d::PrefixStore>("pair", default_process_group().c10d_store()),
      std::move(while_waiting));
}

// One that has met the others, and never says in the store where it listens.
void meet_and_leave(const ProcessGroup& group) {
  const Deadline deadline = Deadline::after(std::chrono::minutes(1));
  rpc::LocalMeeting local;
  rpc::WorkerDescription card{.name = "leaves"};
  local.describe(card);
  local.connect(group, rpc::exchange_cards(group, card, deadline), deadline);
}

TEST(RpcInit, WhileWaitingEndsTheWaitForAWorkerThatNeverComes) {
  NEEDS_RANKS(2);
  const ProcessGroup all = default_process_group();
  const std::filesystem::path has_left =
      broadcast_text(all, concat(::testing::TempDir(), "lockstep_test_rpc_init_", ::getpid()), 0);
  ProcessGroup pair;
  if (all.rank() == 0) {
    pair = pair_that_asks(0, [&] {
      if (std::filesystem::exists(has_left)) throw LeftByCaller();
    });
    EXPECT_THROW(rpc::init("waits", pair), LeftByCaller);
    EXPECT_FALSE(rpc::is_initialized());
  } else if (all.rank() == 1) {
    pair = pair_that_asks(1, {});
    meet_and_leave(pair);
    std::ofstream(has_left).put('x');
  }
  all.barrier();
  std::filesystem::remove(has_left);
}

}  // namespace
}  // namespace lockstep
