#include "lockstep/comm/backends/hierarchical/pipeline.h"

#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "lockstep/comm/backends/shm/engine_testing.h"
#include "lockstep/comm/backends/shm/transfer.h"

namespace lockstep::hierarchical {
namespace {

using namespace std::chrono_literals;
using shm::Engine;

// Never ends.
class StuckWork final : public c10d::Work {
 public:
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  const c10::intrusive_ptr<c10::ivalue::Future> future_ =
      c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
};

// Swaps numbers with the other rank of its machine, then exchanges nothing with other machines,
// which may never end.
class Swap final : public PieceSteps {
 public:
  Swap(int rank, bool is_stuck) : rank_(rank), is_stuck_(is_stuck) {}

  std::unique_ptr<shm::Operation> before(const at::Tensor&) override {
    shm::TransferPlan plan{.call = {.kind = shm::CallKind::kAllGather, .elements = sizeof(int)},
                           .longest_bytes = sizeof(int)};
    plan.outgoing = {{.data = reinterpret_cast<std::byte*>(&own_), .bytes = sizeof own_}};
    plan.incoming = {{.data = reinterpret_cast<std::byte*>(&theirs_),
                      .bytes = sizeof theirs_,
                      .peer = 1 - rank_}};
    return shm::make_transfer(std::move(plan));
  }
  std::unique_ptr<GlooCall> exchange(const at::Tensor&, Deadline) override {
    if (!is_stuck_) return nullptr;
    return std::make_unique<GlooCall>(c10::make_intrusive<StuckWork>(), std::make_shared<Signal>());
  }
  std::unique_ptr<GlooCall> spread(const at::Tensor&, Deadline) override { return nullptr; }
  bool ends_on_machine() const override { return false; }
  std::unique_ptr<shm::Operation> after(const at::Tensor&) override { return nullptr; }

  int theirs() const { return theirs_; }

 private:
  const int rank_;
  const bool is_stuck_;
  int own_ = 42;
  int theirs_ = 0;
};

// A machine of two ranks in one process.
class PipelineOfTwo : public ::testing::Test {
 protected:
  struct Rank {
    Rank(const std::shared_ptr<shm::Segment>& reduced,
         const std::shared_ptr<shm::Segment>& gathered, int rank,
         const c10::intrusive_ptr<c10d::Store>& store)
        : reduce(reduced, rank, "reduce", {}),
          gather(gathered, rank, "gather", {}),
          pipeline({.reduce = reduce,
                    .gather = gather,
                    .exchange = nullptr,
                    .signal = std::make_shared<Signal>(),
                    .note = FailureNote(store, rank),
                    .abort = [this] {
                      reduce.abort();
                      gather.abort();
                    }}) {}

    Engine reduce;
    Engine gather;
    Pipeline pipeline;
  };

  struct Started {
    const Swap& swap;  // lives as long as the pipeline keeps it
    std::shared_ptr<Collective> task;
  };
  static Started start_swap(Rank& rank, bool is_stuck = false,
                            std::chrono::milliseconds timeout = 20s) {
    auto steps = std::make_unique<Swap>(rank.reduce.team().rank(), is_stuck);
    const Swap& swap = *steps;
    std::vector<std::unique_ptr<PieceSteps>> pieces;
    pieces.push_back(std::move(steps));
    return {swap, rank.pipeline.start("swap", std::move(pieces), {}, timeout)};
  }

  // The ranks that the timeout of a swap names.
  static std::vector<int> named_by(Rank& rank, const Started& started) {
    try {
      rank.pipeline.wait(*started.task, shm::testing_engine::soon());
    } catch (const UnnamedCommError& error) {
      EXPECT_EQ(error.failure(), CommFailure::kTimeout) << error.what();
      return error.ranks();
    }
    ADD_FAILURE() << "no error";
    return {};
  }

  const c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
  const std::shared_ptr<shm::Segment> reduced_ = shm::testing_engine::make_segment(2);
  const std::shared_ptr<shm::Segment> gathered_ = shm::testing_engine::make_segment(2);
  Rank first_{reduced_, gathered_, 0, store_};
  Rank second_{reduced_, gathered_, 1, store_};
};

TEST_F(PipelineOfTwo, WritesToNoTensorAfterItHasFailed) {
  const Started started = start_swap(first_);
  const auto lost = std::make_exception_ptr(std::runtime_error("Connection closed by peer"));
  EXPECT_THROW(first_.pipeline.give_up(lost), UnnamedCommError);
  start_swap(second_);    // posts what the first would have got
  Engine::advance_all();  // as waits of any other group do
  EXPECT_EQ(started.swap.theirs(), 0);
}

TEST_F(PipelineOfTwo, NamesThePeerThatMakesNoCall) {
  EXPECT_EQ(named_by(first_, start_swap(first_, false, 300ms)), std::vector{1});
}

// It waits for another machine, and not for its own deadline.
TEST_F(PipelineOfTwo, SaysThatItWaitsWhenItsPeerTimesOut) {
  const Started stuck = start_swap(second_, true);
  const Started ended = start_swap(first_);
  ASSERT_TRUE(first_.pipeline.wait(*ended.task, shm::testing_engine::soon()));
  std::thread second([&] { named_by(second_, stuck); });
  named_by(first_, start_swap(first_, false, 300ms));
  second.join();
  EXPECT_TRUE(store_->check({"waits/1"}));
}

TEST(FailureNote, NamesNoPeerThatWaitsForOthers) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  FailureNote(store, 1).say_that_it_waits();
  store->wait({"waits/1"}, 10s);
  const UnnamedCommError late(CommFailure::kTimeout, "late", {1, 2});
  const auto noted = FailureNote(store, 0).agree(late, /*saw_it_itself=*/false);
  ASSERT_TRUE(noted);
  EXPECT_EQ(noted->ranks(), std::vector{2});
}

}  // namespace
}  // namespace lockstep::hierarchical
