// Ranks as plain processes over shared memory, which are killed: the values must be those of whole
// steps, and the survivors must tell the same.
#include "lockstep/one_copy/internal/step_log.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"

namespace lockstep {
namespace {

constexpr int kMostRanks = 3;
constexpr std::uint64_t kSteps = 3;
// Of a share: two whole chunks and a smaller one.
constexpr std::uint64_t kElements = 40;
constexpr std::uint64_t kChunkElements = 16;
constexpr int kNone = -1;

using ShareValues = std::array<std::array<std::uint64_t, kElements>, kMostRanks>;

/// What the processes of a test share beside the log.
struct Shared {
  ShareValues parameters;
  ShareValues states;
  std::array<ShareValues, kMostRanks> gradients;  ///< By rank, of the step under way.
  std::array<std::atomic<std::uint32_t>, kMostRanks> is_ready;
  std::atomic<std::uint32_t> goes;
  std::array<std::atomic<std::uint64_t>, kMostRanks> completed;  ///< Steps.
  std::array<std::atomic<std::uint32_t>, kMostRanks> has_ended;
};

std::uint64_t gradient_of(std::uint64_t step, int rank, int share, std::uint64_t element) {
  return step * 1'000'003 + static_cast<std::uint64_t>(rank * 1009 + share * 31) + element * 7;
}

// What the step makes of a value; neither commutes nor can be repeated.
void update(std::uint64_t& parameter, std::uint64_t& state, std::uint64_t gradient,
            std::uint64_t factor) {
  state = state * 3 + gradient;
  parameter = parameter * 5 + state * factor;
}

struct Oracle {
  explicit Oracle(int ranks) : ranks_(ranks) {}
  // The first step makes the states.
  void step(std::uint64_t step) {
    for (int share = 0; share < ranks_; ++share) {
      for (std::uint64_t i = 0; i < kElements; ++i) {
        std::uint64_t sum = 0;
        for (int rank = 0; rank < ranks_; ++rank) sum += gradient_of(step, rank, share, i);
        const auto of_share = static_cast<std::size_t>(share);
        if (step == 1) states[of_share][i] = 11;
        update(parameters[of_share][i], states[of_share][i], sum, step + 2);
      }
    }
  }
  ShareValues parameters{};
  ShareValues states{};

 private:
  int ranks_;
};

/// How a process ends in the middle.
struct Fault {
  std::string failpoint = {};  ///< "update.kept:2:kill"; empty: none.
  int write = kNone;           ///< Number of the value that is written last.
  int gradient = kNone;        ///< Step before whose hand-over it ends.
  bool is_error = false;       ///< Instead of SIGKILL the rank leaves and lives on.
};

class Rank {
 public:
  Rank(int fd, int log_fd, int ranks, int rank, Fault fault)
      : memory_(fd, sizeof(Shared)),
        log_memory_(log_fd, StepLog::bytes(sizes_of(ranks))),
        shared_(*reinterpret_cast<Shared*>(memory_.data())),
        log_(log_memory_, memory_, sizes_of(ranks), rank),
        ranks_(ranks),
        rank_(rank),
        own_(static_cast<std::size_t>(rank)),
        fault_(std::move(fault)) {}

  static StepLog::Sizes sizes_of(int ranks) {
    return {.ranks = ranks,
            .record_words = 1,
            .pieces = 2,
            .undo_bytes = 2 * kChunkElements * sizeof(std::uint64_t)};
  }

  void run() {
    log_.join();
    shared_.is_ready[own_].store(1);
    while (shared_.goes.load() == 0) ::sched_yield();
    try {
      for (step_ = 1; step_ <= kSteps && make_step(); ++step_) {
        shared_.completed[own_].store(step_);
      }
    } catch (const std::runtime_error&) {
      log_.leave();
      return;
    }
    shared_.has_ended[own_].store(1);
  }

 private:
  Deadline soon() const { return Deadline::after(std::chrono::seconds(30)); }

  bool make_step() {
    if (fault_.gradient == static_cast<int>(step_)) fail();
    for (int share = 0; share < ranks_; ++share) {
      for (std::uint64_t i = 0; i < kElements; ++i) {
        shared_.gradients[own_][static_cast<std::size_t>(share)][i] =
            gradient_of(step_, rank_, share, i);
      }
    }
    log_.own_record(step_)[0] = static_cast<std::int64_t>(step_ + 2);
    log_.hand_over(step_);
    spin_until([&](int rank) { return log_.has_handed_over(rank, step_); });
    const Decision wanted = log_.await_hand_over(step_, soon());
    if (log_.decide(step_, wanted) != Decision::kUpdate) return false;
    run_shard(rank_);
    spin_until([&](int rank) { return log_.is_complete(rank, step_); });
    return log_.finish_shares(step_, soon(), [&](int share) { run_shard(share); });
  }

  // As a collective: until all are there, or one is gone.
  template <class IsThere>
  void spin_until(IsThere&& is_there) const {
    for (int rank = 0; rank < ranks_; ++rank) {
      while (!is_there(rank) && log_.all_are_present()) ::sched_yield();
    }
  }

  void run_shard(int of_share) {
    const auto share = static_cast<std::size_t>(of_share);
    ShareRun run(log_, step_, of_share);
    run.prepare([&] {
      if (step_ == 1) shared_.states[share].fill(11);
    });
    const auto factor = static_cast<std::uint64_t>(log_.record(of_share, step_)[0]);
    for (std::uint64_t begin = 0; begin < kElements; begin += kChunkElements) {
      const std::uint64_t end = std::min(begin + kChunkElements, kElements);
      std::uint64_t* const parameters = shared_.parameters[share].data();
      std::uint64_t* const states = shared_.states[share].data();
      const std::array pieces = {piece(parameters + begin, end - begin),
                                 piece(states + begin, end - begin)};
      run.run_chunk(pieces, [&] {
        for (std::uint64_t i = begin; i < end; ++i) {
          std::uint64_t sum = 0;
          for (int rank = 0; rank < ranks_; ++rank) {
            sum += shared_.gradients[static_cast<std::size_t>(rank)][share][i];
          }
          update(parameters[i], states[i], sum, factor);
          if (++writes_ == fault_.write) fail();
        }
      });
    }
    run.complete();
  }

  StepLog::Piece piece(const std::uint64_t* first, std::uint64_t count) const {
    return {.offset = static_cast<std::uint64_t>(reinterpret_cast<const std::byte*>(first) -
                                                 memory_.data()),
            .bytes = count * sizeof(std::uint64_t)};
  }

  void fail() const {
    if (fault_.is_error) throw std::runtime_error("an error of this rank's own");
    ::kill(::getpid(), SIGKILL);
  }

  const SharedMapping memory_;
  const SharedMapping log_memory_;
  Shared& shared_;
  StepLog log_;
  const int ranks_;
  const int rank_;
  const std::size_t own_;
  const Fault fault_;
  std::uint64_t step_ = 0;
  int writes_ = 0;
};

struct Outcome {
  std::uint64_t completed = 0;  ///< Steps, on all ranks that did not end in the middle.
  std::vector<int> ended;       ///< Ranks that ended in the middle.
};

class StepLogRanks : public ::testing::Test {
 protected:
  /// Runs the ranks to their ends. `kill_at`: what the test does to the processes meanwhile.
  Outcome run(int ranks, const std::vector<Fault>& faults,
              const std::function<void(const std::vector<pid_t>&)>& meanwhile = {}) {
    const UniqueFd file = make_memory_file("step log test", sizeof(Shared));
    const UniqueFd log = make_memory_file("step log", StepLog::bytes(Rank::sizes_of(ranks)));
    std::vector<pid_t> processes;
    for (int rank = 0; rank < ranks; ++rank) {
      processes.push_back(::fork());
      if (processes.back() == 0) run_rank(file.get(), log.get(), ranks, rank, faults);
    }
    const SharedMapping memory(file.get(), sizeof(Shared));
    Shared& shared = *reinterpret_cast<Shared*>(memory.data());
    for (int rank = 0; rank < ranks; ++rank) {
      while (shared.is_ready[static_cast<std::size_t>(rank)].load() == 0) ::sched_yield();
    }
    shared.goes.store(1);
    if (meanwhile) meanwhile(processes);
    for (const pid_t process : processes) EXPECT_EQ(::waitpid(process, nullptr, 0), process);
    return check(ranks, shared);
  }

  static Outcome check(int ranks, const Shared& shared) {
    Outcome outcome;
    std::optional<std::uint64_t> completed;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto of_rank = static_cast<std::size_t>(rank);
      if (shared.has_ended[of_rank].load() == 0) {
        outcome.ended.push_back(rank);
        continue;
      }
      const std::uint64_t of_this = shared.completed[of_rank].load();
      EXPECT_EQ(of_this, completed.value_or(of_this)) << "rank " << rank << " disagrees";
      completed = of_this;
    }
    EXPECT_TRUE(completed) << "no rank has survived";
    outcome.completed = completed.value_or(0);
    Oracle oracle(ranks);
    for (std::uint64_t step = 1; step <= outcome.completed; ++step) oracle.step(step);
    for (std::size_t share = 0; share < static_cast<std::size_t>(ranks); ++share) {
      EXPECT_EQ(shared.parameters[share], oracle.parameters[share]) << "share " << share;
      EXPECT_EQ(shared.states[share], oracle.states[share]) << "share " << share;
    }
    return outcome;
  }

 private:
  [[noreturn]] static void run_rank(int fd, int log_fd, int ranks, int rank,
                                    const std::vector<Fault>& faults) {
    // What failpoints print.
    ::dup2(::open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
    Fault fault;
    if (static_cast<std::size_t>(rank) < faults.size()) {
      fault = faults[static_cast<std::size_t>(rank)];
    }
#if defined(LOCKSTEP_FAILPOINTS)
    if (!fault.failpoint.empty()) arm_failpoints(fault.failpoint);
#endif
    {
      Rank one(fd, log_fd, ranks, rank, fault);
      one.run();
    }
    ::_exit(0);
  }
};

std::vector<Fault> only(int rank, Fault fault) {
  std::vector<Fault> faults(kMostRanks);
  faults[static_cast<std::size_t>(rank)] = std::move(fault);
  return faults;
}

TEST(StepLog, SaysWhatWasDecided) {
  const std::uint64_t bytes = StepLog::bytes(Rank::sizes_of(2));
  const UniqueFd file = make_memory_file("step log test", bytes);
  const SharedMapping memory(file.get(), bytes);
  StepLog log(memory, memory, Rank::sizes_of(2), 1);
  EXPECT_FALSE(log.is_decided(1, Decision::kVoid));
  EXPECT_EQ(log.decide(1, Decision::kVoid), Decision::kVoid);
  EXPECT_TRUE(log.is_decided(1, Decision::kVoid));
  EXPECT_FALSE(log.is_decided(1, Decision::kUpdate));
  EXPECT_FALSE(log.is_decided(2, Decision::kVoid));
}

TEST_F(StepLogRanks, MakeAllStepsUndisturbed) {
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    SCOPED_TRACE(ranks);
    const Outcome outcome = run(ranks, {});
    EXPECT_EQ(outcome.completed, kSteps);
    EXPECT_TRUE(outcome.ended.empty());
  }
}

// After every single value of every chunk.
TEST_F(StepLogRanks, FinishTheStepOfARankThatIsKilledWhileItWrites) {
  for (int ranks = 2; ranks <= kMostRanks; ++ranks) {
    for (int write = 1; write <= static_cast<int>(2 * kElements); ++write) {
      SCOPED_TRACE(concat(ranks, " ranks, value ", write));
      const Outcome outcome = run(ranks, only(write % ranks, {.write = write}));
      EXPECT_EQ(outcome.completed, 1 + static_cast<std::uint64_t>(write - 1) / kElements);
      EXPECT_EQ(outcome.ended, std::vector{write % ranks});
    }
  }
}

TEST_F(StepLogRanks, FinishTheStepOfARankThatLeavesAfterAnError) {
  for (int write = 1; write <= static_cast<int>(kElements); write += 3) {
    SCOPED_TRACE(write);
    const Outcome outcome = run(3, only(write % 3, {.write = write, .is_error = true}));
    EXPECT_EQ(outcome.completed, 1u);
    EXPECT_EQ(outcome.ended, std::vector{write % 3});
  }
}

TEST_F(StepLogRanks, ChangeNothingWhereARankHasNotHandedOver) {
  for (int ranks = 2; ranks <= kMostRanks; ++ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (int step = 1; step <= static_cast<int>(kSteps); ++step) {
        for (const bool is_error : {false, true}) {
          const Outcome outcome = run(ranks, only(rank, {.gradient = step, .is_error = is_error}));
          EXPECT_EQ(outcome.completed, static_cast<std::uint64_t>(step - 1));
          EXPECT_EQ(outcome.ended, std::vector{rank});
        }
      }
    }
  }
}

#if defined(LOCKSTEP_FAILPOINTS)

constexpr std::array kOfAStep = {"update.handed",  "update.prepared", "update.kept",
                                 "update.begun",   "update.written",  "update.chunk",
                                 "update.complete"};
constexpr std::array kOfAChunk = {"update.kept", "update.begun", "update.written", "update.chunk"};
constexpr int kChunks = (kElements + kChunkElements - 1) / kChunkElements;

bool is_of_a_chunk(const std::string& name) {
  return std::ranges::find(kOfAChunk, name) != kOfAChunk.end();
}

TEST_F(StepLogRanks, FinishTheStepOfARankThatIsKilledAtAnyFailpoint) {
  for (int ranks = 2; ranks <= kMostRanks; ++ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (const std::string name : kOfAStep) {
        const int in_a_step = is_of_a_chunk(name) ? kChunks : 1;
        for (int n = 1; n <= 2 * in_a_step; ++n) {
          const std::string failpoint = concat(name, ":", n, ":kill");
          SCOPED_TRACE(concat(ranks, " ranks, rank ", rank, " at ", failpoint));
          const Outcome outcome = run(ranks, only(rank, {.failpoint = failpoint}));
          EXPECT_EQ(outcome.ended, std::vector{rank});
          EXPECT_EQ(outcome.completed, static_cast<std::uint64_t>((n - 1) / in_a_step + 1));
        }
      }
    }
  }
}

// Of three ranks one is killed, and then one that may be finishing the share of the first.
TEST_F(StepLogRanks, FinishTheStepOfAFinisherThatIsKilled) {
  std::vector<std::string> later = {"update.taken:1:kill", "update.restored:1:kill"};
  for (const std::string name : kOfAChunk) {
    for (int n = kChunks + 1; n <= 2 * kChunks; ++n) later.push_back(concat(name, ":", n, ":kill"));
  }
  for (const std::string first : {"update.handed:1:kill", "update.kept:1:kill",
                                  "update.begun:2:kill", "update.written:3:kill"}) {
    for (const std::string& second : later) {
      for (const int finisher : {0, 1}) {
        SCOPED_TRACE(concat("rank 2 at ", first, ", rank ", finisher, " at ", second));
        std::vector<Fault> faults = only(2, {.failpoint = first});
        faults[static_cast<std::size_t>(finisher)].failpoint = second;
        const Outcome outcome = run(3, faults);
        EXPECT_EQ(outcome.completed, 1u);
      }
    }
  }
}

#endif

TEST_F(StepLogRanks, FinishTheStepOfRanksThatAreKilledAtAnyInstant) {
  constexpr int kRuns = 300;
  constexpr std::uint64_t kSeed = 20251;
  std::mt19937_64 random(kSeed);
  std::array<int, kSteps + 1> runs_by_steps{};
  for (int number = 0; number < kRuns; ++number) {
    SCOPED_TRACE(concat("seed ", kSeed, ", run ", number));
    const int ranks = 2 + number % 2;
    const auto spin = std::chrono::nanoseconds(random() % 150'000);
    const auto victim = static_cast<std::size_t>(random()) % static_cast<std::size_t>(ranks);
    const bool kills_two = ranks == 3 && random() % 3 == 0;
    const Outcome outcome = run(ranks, {}, [&](const std::vector<pid_t>& processes) {
      const auto begin = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - begin < spin) {
      }
      ::kill(processes[victim], SIGKILL);
      if (kills_two) ::kill(processes[(victim + 1) % 3], SIGKILL);
    });
    ++runs_by_steps[outcome.completed];
  }
  // Else the instants are not those of the steps.
  EXPECT_GT(runs_by_steps[0] + runs_by_steps[1] + runs_by_steps[2], 10);
}

}  // namespace
}  // namespace lockstep
