// One copy per machine while ranks are killed in the middle of step(). Ranks are forks of this
// process, which loads LibTorch once and starts no thread, so that a run takes milliseconds. The
// oracle is a run in which no rank is killed: survivors must have its bits after the same step.
// Each rank saves meanwhile: what it freezes before a step must stay, whichever rank is killed.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <torch/optim/adamw.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/os/memory/frozen_memory.h"
#include "lockstep/snapshot/internal/optimizer_description.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "tests/ranks/factors.h"

namespace lockstep::testing::one_copy_kill_tests {
namespace {

using Tensors = std::vector<at::Tensor>;
using Model = DistributedDataParallel<FactorsImpl>;

constexpr int kMostRanks = 3;
constexpr int kMostOnMachines = 4;
constexpr std::uint64_t kSteps = 3;
// In shares of several chunks, of which one has several parameters.
const Sizes kSizes = {3, 150'001, 64, 70'000, 1};

enum class Program : int {
  kAdamW,
  kSgd,
  kChangesParameters,
  kTwoModels,
  kLamb,
  kLibTorch,
  kLambAfterOrdinary,  ///< A group of a parameter that ranks do not share comes first.
  kFollowsAPeer,       ///< Rank 0 begins step 3 when rank 1 has ended.
  kWrongState,
  kWrongStateOfLamb,
  kWrongStateOfOrdinary,
  kRefused,
};

bool has_wrong_state(Program program) {
  return program == Program::kWrongState || program == Program::kWrongStateOfLamb ||
         program == Program::kWrongStateOfOrdinary;
}
bool has_ordinary(Program program) {
  return program == Program::kLambAfterOrdinary || program == Program::kWrongStateOfOrdinary;
}

/// What a rank tells the test.
struct Report {
  std::atomic<std::uint64_t> completed;  ///< Steps.
  std::atomic<std::uint64_t> digest;     ///< Of parameters and state after the last one.
  std::array<std::atomic<std::uint64_t>, kSteps + 1> digests;
  std::atomic<int> lost_rank;  ///< What the error named that ended it.
  std::atomic<bool> is_peer_failed;
  std::atomic<bool> was_stopped;
  std::atomic<bool> has_lost_past;  ///< What it froze has changed.
  std::atomic<bool> has_ended;
  std::atomic<bool> has_exited;  ///< Its process.
};

struct Reports {
  std::array<Report, kMostOnMachines> by_rank;
  std::atomic<std::uint32_t> ready;
};

// Of words: this program is not optimized.
std::uint64_t add_bits(std::uint64_t digest, const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().contiguous();
  const auto* const bytes = static_cast<const char*>(dense.const_data_ptr());
  const std::size_t size = dense.nbytes();
  for (std::size_t i = 0; i < size; i += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min(sizeof word, size - i));
    digest = (digest ^ word) * 1099511628211U;
    digest ^= digest >> 32U;  // Else the high bits of a word would reach none of the next.
  }
  return digest;
}

Tensors tensors_of(const Tensors& parameters, const torch::optim::Optimizer& optimizer) {
  Tensors tensors = parameters;
  const auto state = optimizer_state_dict(optimizer).toGenericDict().at("state").toGenericDict();
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(state.size()); ++i) {
    for (const auto& value : state.at(i).toGenericDict()) {
      if (value.value().isTensor()) tensors.push_back(value.value().toTensor());
    }
  }
  return tensors;
}

std::uint64_t digest_of(const Tensors& tensors) {
  std::uint64_t digest = 14695981039346656037U;
  for (const at::Tensor& tensor : tensors) digest = add_bits(digest, tensor);
  return digest;
}

std::uint64_t digest_of(const Tensors& parameters, const torch::optim::Optimizer& optimizer) {
  return digest_of(tensors_of(parameters, optimizer));
}

/// The tensors of a copy, frozen.
class Past {
 public:
  explicit Past(const Tensors& tensors) {
    for (const at::Tensor& tensor : tensors) {
      const auto memory = FreezableMemory::find(tensor.const_data_ptr());
      if (!memory) continue;
      auto& frozen = memories_[memory.get()];
      if (!frozen) frozen = memory->freeze();
      tensors_.push_back(tensor);
      frozen_.push_back(frozen);
    }
    digest_ = digest_of(tensors_);
  }

  bool is_kept() const {
    Tensors read;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!frozen_[i]) return false;
      read.push_back(at::zeros(tensors_[i].sizes(), tensors_[i].options()));
      frozen_[i]->read(tensors_[i].const_data_ptr(), tensors_[i].nbytes(),
                       static_cast<std::byte*>(read.back().mutable_data_ptr()));
    }
    return digest_of(read) == digest_;
  }

 private:
  std::map<const FreezableMemory*, std::shared_ptr<const FrozenMemory>> memories_;
  Tensors tensors_;
  std::vector<std::shared_ptr<const FrozenMemory>> frozen_;
  std::uint64_t digest_ = 0;
};

/// One rank of a run.
class Rank {
 public:
  Rank(int ranks, int rank, const std::string& meeting, bool is_on_machines, Program program,
       Report& report)
      : rank_(rank),
        program_(program),
        report_(report),
        group_(init_process_group({.backend = is_on_machines ? "hierarchical" : "shm",
                                   .init_method = "file://" + meeting,
                                   .rank = rank,
                                   .world_size = ranks})) {
    for (int i = 0; i < (program == Program::kTwoModels ? 2 : 1); ++i) {
      models_.emplace_back(module().ptr(),
                           DistributedDataParallelOptions{.one_copy_per_machine = true});
      for (const at::Tensor& parameter : models_.back().parameters()) {
        parameters_.push_back(parameter);
      }
    }
    if (program == Program::kSgd) {
      optimizer_ = std::make_unique<SGD>(parameters_, SGDOptions{.lr = 0.1, .momentum = 0.9});
    } else if (program == Program::kLamb || program == Program::kWrongStateOfLamb) {
      optimizer_ = std::make_unique<LAMB>(parameters_, LAMBOptions{.lr = 0.1});
    } else if (has_ordinary(program)) {
      using Group = torch::optim::OptimizerParamGroup;
      optimizer_ =
          std::make_unique<LAMB>(std::vector<Group>{Group(Tensors{ordinary_}), Group(parameters_)},
                                 LAMBOptions{.lr = 0.1});
    } else if (program == Program::kLibTorch) {
      optimizer_ = std::make_unique<torch::optim::AdamW>(
          parameters_, torch::optim::AdamWOptions(0.1).amsgrad(true));
    } else {
      optimizer_ = std::make_unique<AdamW>(parameters_, AdamWOptions{.lr = 0.1, .amsgrad = true});
    }
  }

  void run(std::atomic<std::uint32_t>& ready, const std::atomic<bool>& peer_has_exited) {
    ++ready;
    note(0);
    std::optional<Past> past;
    const std::uint64_t first_of_past = group_.world_size() == 2 ? 1 : 2;
    try {
      for (std::uint64_t step = 1; step <= kSteps; ++step) {
        if (program_ == Program::kFollowsAPeer && rank_ == 0 && step == 3) {
          while (!peer_has_exited) ::sched_yield();
        }
        if (step == first_of_past) past.emplace(tensors_of(parameters_, *optimizer_));
        make_step(step);
        if (past && !past->is_kept()) report_.has_lost_past = true;
        note(step);
      }
    } catch (const OperationError& error) {
      report_.lost_rank = error.rank().value_or(-1);
      report_.is_peer_failed = dynamic_cast<const PeerFailed*>(&error) != nullptr;
      // Nothing was changed.
      report_.digest = digest_of(parameters_, *optimizer_);
      if (past && !past->is_kept()) report_.has_lost_past = true;
    }
    report_.has_ended = true;
  }

 private:
  static Factors module() {
    Factors module(kSizes);
    const at::NoGradGuard no_grad;
    for (const at::Tensor& factor : module->factors) {
      factor.copy_(at::cos(at::arange(factor.numel(), at::kDouble)));
    }
    return module;
  }

  Tensors factors_of(std::uint64_t step) const {
    Tensors factors;
    for (const std::int64_t size : kSizes) {
      factors.push_back(
          at::sin(at::arange(size, at::kDouble) * (rank_ + 1) + static_cast<double>(step)));
    }
    return factors;
  }

  void make_step(std::uint64_t step) {
    optimizer_->zero_grad();
    for (Model& model : models_) {
      model(factors_of(step)).backward();
    }
    if (has_ordinary(program_)) ordinary_.mutable_grad() = at::ones_like(ordinary_);
    if (program_ == Program::kChangesParameters && step == 2) {
      const at::NoGradGuard no_grad;
      parameters_[1].mul_(0.5);
      parameters_[4].fill_(7);
    }
    if (program_ == Program::kRefused && step == 2) make_refused_step();
    if (has_wrong_state(program_) && step == 2 && rank_ == 1) return make_step_with_wrong_state();
    step_optimizer(*optimizer_);
  }

  // The program tries another backward(), while peers may still read the gradients of the step.
  void make_step_with_wrong_state() {
    spoil_state();
    try {
      step_optimizer(*optimizer_);
    } catch (const UsageError&) {
      optimizer_->zero_grad();
      try {
        models_[0](factors_of(9)).backward();
      } catch (const PeerLost&) {
        report_.was_stopped = true;
      }
      throw;
    }
  }

  // Refused on every rank before any has handed over its gradients.
  void make_refused_step() {
    optimizer_->zero_grad();
    {
      const auto guard = models_[0].no_sync();
      models_[0](factors_of(5)).backward();
    }
    try {
      optimizer_->step();
    } catch (const UsageError&) {
      optimizer_->zero_grad();
      models_[0](factors_of(2)).backward();
    }
  }

  // step() refuses it when all ranks have handed over their gradients.
  void spoil_state() {
    const at::Tensor& parameter = has_ordinary(program_) ? ordinary_ : parameters_[0];
    auto& state = *optimizer_->state().at(parameter.unsafeGetTensorImpl());
    dynamic_cast<DescribedState&>(state).tensors[0] = at::zeros({5});
  }

  void note(std::uint64_t step) {
    report_.digest = report_.digests[step] = digest_of(parameters_, *optimizer_);
    report_.completed = step;
  }

  const int rank_;
  const Program program_;
  Report& report_;
  ProcessGroup group_;
  std::deque<Model> models_;
  Tensors parameters_;
  at::Tensor ordinary_ = at::ones({7}, at::kDouble).requires_grad_();
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

struct Outcome {
  std::uint64_t completed = 0;
  std::vector<int> ended;           ///< Ranks that were killed, or failed.
  bool is_refused = false;          ///< By a peer, that lives.
  bool was_stopped = false;         ///< A rank that failed in a step could not go on.
  bool are_machines_apart = false;  ///< By a step.
};

class OneCopyKilled : public ::testing::Test {
 protected:
  using Faults = std::vector<std::string>;  ///< By rank: a failpoint; empty: none.

  static bool are_several(const std::string& machines) {
    return machines.find_first_not_of(machines[0]) != std::string::npos;
  }

  static Faults only(int rank, const std::string& fault) {
    Faults faults(kMostOnMachines);
    faults[static_cast<std::size_t>(rank)] = fault;
    return faults;
  }

  Outcome run(int ranks, Program program, const Faults& faults = Faults(kMostOnMachines),
              const std::function<void(const std::vector<pid_t>&)>& meanwhile = {}) {
    return run(std::string(static_cast<std::size_t>(ranks), '0'), program, faults, meanwhile);
  }

  /// `machines`: a digit a rank, equal where ranks share memory.
  Outcome run(const std::string& machines, Program program, const Faults& faults,
              const std::function<void(const std::vector<pid_t>&)>& meanwhile = {}) {
    const auto ranks = static_cast<int>(machines.size());
    const auto expected = digests(machines, program);
    auto* const reports = run_ranks(machines, program, faults, meanwhile);
    Outcome outcome;
    std::map<char, std::uint64_t> of_machines;
    for (int rank = 0; rank < ranks; ++rank) {
      const Report& report = reports->by_rank[static_cast<std::size_t>(rank)];
      if (!report.has_ended) {
        outcome.ended.push_back(rank);
        outcome.was_stopped = outcome.was_stopped || report.was_stopped;
        continue;
      }
      EXPECT_FALSE(report.has_lost_past) << "rank " << rank;
      const std::uint64_t completed = report.completed;
      const auto of_machine =
          of_machines.try_emplace(machines[static_cast<std::size_t>(rank)], completed).first;
      EXPECT_EQ(completed, of_machine->second) << "rank " << rank << " disagrees";
      outcome.completed = std::max(outcome.completed, completed);
      for (std::uint64_t step = 0; step <= completed; ++step) {
        EXPECT_EQ(report.digests[step], expected[step]) << "rank " << rank << ", step " << step;
      }
      // Of a step that did not happen the program has what it has changed itself.
      const bool has_own_change = program == Program::kChangesParameters && completed == 1;
      if (!has_own_change) {
        EXPECT_EQ(report.digest, expected[completed]) << "rank " << rank;
      }
      outcome.is_refused = outcome.is_refused || report.is_peer_failed;
    }
    EXPECT_FALSE(of_machines.empty()) << "no rank has survived";
    for (const auto& [machine, completed] : of_machines) {
      EXPECT_LE(outcome.completed, completed + 1) << "machine " << machine;
      if (completed < outcome.completed) outcome.are_machines_apart = true;
    }
    for (int rank = 0; rank < ranks; ++rank) {
      const Report& report = reports->by_rank[static_cast<std::size_t>(rank)];
      if (!report.has_ended || report.completed == kSteps) continue;
      const int lost = report.lost_rank;
      // A rank of another machine may see the connections break first.
      if (lost < 0 && are_several(machines)) continue;
      EXPECT_TRUE(std::ranges::find(outcome.ended, lost) != outcome.ended.end())
          << "rank " << rank << " named rank " << lost;
    }
    ::munmap(reports, sizeof(Reports));
    return outcome;
  }

 private:
  using Digests = std::array<std::uint64_t, kSteps + 1>;

  // What the steps make of a model where no rank is killed.
  static Digests digests(const std::string& machines, Program program) {
    const auto ranks = static_cast<int>(machines.size());
    static std::map<std::pair<std::string, Program>, Digests> known;
    // The state is spoiled before a step that does not happen on all ranks.
    if (program == Program::kWrongState || program == Program::kRefused ||
        program == Program::kFollowsAPeer) {
      program = Program::kAdamW;
    }
    if (program == Program::kWrongStateOfLamb) program = Program::kLamb;
    if (program == Program::kWrongStateOfOrdinary) program = Program::kLambAfterOrdinary;
    const auto [found, is_new] = known.try_emplace({machines, program});
    if (!is_new) return found->second;
    auto* const reports = run_ranks(machines, program, Faults(kMostOnMachines), {});
    for (int rank = 0; rank < ranks; ++rank) {
      const Report& report = reports->by_rank[static_cast<std::size_t>(rank)];
      EXPECT_EQ(report.completed, kSteps);
      for (std::uint64_t step = 0; step <= kSteps; ++step) {
        if (rank == 0) found->second[step] = report.digests[step];
        EXPECT_EQ(report.digests[step], found->second[step]) << "rank " << rank;
        if (step > 0) {
          EXPECT_NE(found->second[step], found->second[step - 1]);
        }
      }
    }
    ::munmap(reports, sizeof(Reports));
    return found->second;
  }

  static Reports* run_ranks(const std::string& machines, Program program, const Faults& faults,
                            const std::function<void(const std::vector<pid_t>&)>& meanwhile) {
    const auto ranks = static_cast<int>(machines.size());
    const TemporaryDirectory folder(temporary_folder(), "one-copy-");
    auto* const reports = static_cast<Reports*>(::mmap(
        nullptr, sizeof(Reports), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    std::vector<pid_t> processes;
    for (int rank = 0; rank < ranks; ++rank) {
      processes.push_back(::fork());
      if (processes.back() == 0) {
        run_rank(machines, rank, folder.path() / "meeting", program,
                 faults[static_cast<std::size_t>(rank)], *reports);
      }
    }
    if (meanwhile) {
      while (reports->ready < static_cast<std::uint32_t>(ranks)) ::sched_yield();
      meanwhile(processes);
    }
    for (int left = ranks; left > 0; --left) {
      const auto ended = std::ranges::find(processes, ::waitpid(-1, nullptr, 0));
      if (ended == processes.end()) break;
      reports->by_rank[static_cast<std::size_t>(ended - processes.begin())].has_exited = true;
    }
    return reports;
  }

  [[noreturn]] static void run_rank(const std::string& machines, int rank,
                                    const std::string& meeting, Program program,
                                    const std::string& fault, Reports& reports) {
    // What failpoints print.
    ::dup2(::open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
    try {
      at::set_num_threads(1);
      const auto place = static_cast<std::size_t>(rank);
      ::setenv(env::kMemoryDomain.name, machines.substr(place, 1).c_str(), 1);
      Rank one(static_cast<int>(machines.size()), rank, meeting, are_several(machines), program,
               reports.by_rank[place]);
#if defined(LOCKSTEP_FAILPOINTS)
      arm_failpoints(fault);
#else
      (void)fault;
#endif
      one.run(reports.ready, reports.by_rank[1].has_exited);
      if (!has_wrong_state(program)) destroy_process_group();
    } catch (const std::exception&) {
      ::_exit(1);
    }
    ::_exit(0);
  }
};

TEST_F(OneCopyKilled, AtAnyInstantLeavesWholeSteps) {
  constexpr int kRuns = 40;
  constexpr std::uint64_t kSeed = 25;
  std::mt19937_64 random(kSeed);
  int killed_in_steps = 0;
  for (int number = 0; number < kRuns; ++number) {
    SCOPED_TRACE(concat("seed ", kSeed, ", run ", number));
    const int ranks = 2 + number / 6 % 2;
    const auto program = static_cast<Program>(number % 6);
    const auto spin = std::chrono::microseconds(random() % 30'000);
    const auto victim = static_cast<std::size_t>(random()) % static_cast<std::size_t>(ranks);
    const Outcome outcome =
        run(ranks, program, Faults(kMostOnMachines), [&](const std::vector<pid_t>& processes) {
          const auto begin = std::chrono::steady_clock::now();
          while (std::chrono::steady_clock::now() - begin < spin) {
          }
          ::kill(processes[victim], SIGKILL);
        });
    if (outcome.completed < kSteps) ++killed_in_steps;
  }
  EXPECT_GT(killed_in_steps, kRuns / 10);
}

TEST_F(OneCopyKilled, OnSeveralMachinesAtAnyInstantToo) {
  constexpr int kRuns = 6;
  constexpr std::uint64_t kSeed = 26;
  std::mt19937_64 random(kSeed);
  for (int number = 0; number < kRuns; ++number) {
    SCOPED_TRACE(concat("seed ", kSeed, ", run ", number));
    const std::string machines = number % 3 == 0 ? "0011" : number % 3 == 1 ? "001" : "0101";
    const auto program = static_cast<Program>(number % 6);
    const auto spin = std::chrono::microseconds(random() % 60'000);
    const auto victim = static_cast<std::size_t>(random()) % machines.size();
    run(machines, program, Faults(kMostOnMachines), [&](const std::vector<pid_t>& processes) {
      const auto begin = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - begin < spin) {
      }
      ::kill(processes[victim], SIGKILL);
    });
  }
}

// Also on machines of which no rank refuses it.
TEST_F(OneCopyKilled, AnErrorOfOneRankIsNoStepOfAnyMachine) {
  for (const auto& [machines, program] :
       {std::pair<std::string, Program>{"001", Program::kWrongState},
        {"011", Program::kWrongStateOfLamb}}) {
    SCOPED_TRACE(machines);
    const Outcome outcome = run(machines, program, Faults(kMostOnMachines));
    EXPECT_EQ(outcome.ended, std::vector{1});
    EXPECT_EQ(outcome.completed, 1u);
    EXPECT_TRUE(outcome.is_refused);
  }
}

// The peers make the step without the rank that refuses it, or none makes it.
TEST_F(OneCopyKilled, AnErrorOfOneRankIsNoTornStep) {
  for (const Program program :
       {Program::kWrongState, Program::kWrongStateOfLamb, Program::kWrongStateOfOrdinary}) {
    for (int ranks = 2; ranks <= kMostRanks; ++ranks) {
      SCOPED_TRACE(concat(ranks, " ranks, program ", static_cast<int>(program)));
      const Outcome outcome = run(ranks, program);
      EXPECT_EQ(outcome.ended, std::vector{1});
      EXPECT_EQ(outcome.was_stopped, outcome.completed > 1);
      const bool is_finished = program == Program::kWrongState && outcome.completed == 2;
      EXPECT_TRUE(is_finished || (outcome.completed == 1 && outcome.is_refused))
          << outcome.completed << (outcome.is_refused ? ", refused" : "");
    }
  }
}

TEST_F(OneCopyKilled, AStepThatAllRanksRefuseLeavesTheGroupAsItWas) {
  const Outcome outcome = run(2, Program::kRefused);
  EXPECT_TRUE(outcome.ended.empty());
  EXPECT_EQ(outcome.completed, kSteps);
}

#if defined(LOCKSTEP_FAILPOINTS)

// step_log_test.cpp kills every rank; whole ranks take a second each.
int victim_of(int ranks) {
  return ranks == 2 ? 1 : 0;
}

/// Of a share, where kernels of Lockstep's update it: of 16 blocks of 64 elements.
int chunks_of(int ranks, int rank) {
  std::int64_t blocks = 0;
  for (const std::int64_t size : kSizes) blocks += (size + 63) / 64;
  const std::int64_t own = blocks / ranks + (rank < blocks % ranks ? 1 : 0);
  return static_cast<int>((own + 15) / 16);
}

// Places of the first two steps, of which the first makes the states.
TEST_F(OneCopyKilled, AtAnyFailpointFinishesTheStepInFlight) {
  for (int ranks = 2; ranks <= kMostRanks; ++ranks) {
    const int rank = victim_of(ranks);
    const int chunks = chunks_of(ranks, rank);
    struct Place {
      const char* name;
      int in_a_step;
      std::vector<int> passes;
    };
    const std::vector<int> of_step = {1, 2};
    const std::vector<int> of_chunks = {1, chunks / 2, chunks, chunks + 1, 2 * chunks};
    const Place places[] = {
        {"update.handed", 1, of_step},         {"update.prepared", 1, of_step},
        {"update.copied", 0, {1, 100}},        {"update.marked", 0, {1, chunks}},
        {"update.kept", chunks, of_chunks},    {"update.begun", chunks, of_chunks},
        {"update.written", chunks, of_chunks}, {"update.chunk", chunks, of_chunks},
        {"update.complete", 1, of_step}};
    for (const auto& [name, in_a_step, passes] : places) {
      for (const int n : passes) {
        const std::string failpoint = concat(name, ":", n, ":kill");
        SCOPED_TRACE(concat(ranks, " ranks, rank ", rank, " at ", failpoint));
        const Outcome outcome = run(ranks, Program::kAdamW, only(rank, failpoint));
        EXPECT_EQ(outcome.ended, std::vector{rank});
        // What is saved is kept in the first step of which it is the state before.
        const int step = in_a_step == 0 ? ranks - 1 : (n - 1) / in_a_step + 1;
        EXPECT_EQ(outcome.completed, static_cast<std::uint64_t>(step));
      }
    }
  }
}

TEST_F(OneCopyKilled, FinishesWhatTheProgramHasChangedToo) {
  for (int rank = 0; rank < 2; ++rank) {
    const int in_second_step = chunks_of(2, rank) + 1;
    for (const std::string& failpoint :
         {std::string("update.handed:2:kill"), std::string("update.prepared:2:kill"),
          concat("update.kept:", in_second_step, ":kill"),
          concat("update.written:", in_second_step, ":kill")}) {
      SCOPED_TRACE(concat("rank ", rank, " at ", failpoint));
      const Outcome outcome = run(2, Program::kChangesParameters, only(rank, failpoint));
      EXPECT_EQ(outcome.completed, 2u);
    }
  }
}

TEST_F(OneCopyKilled, FinishesTheStepOfTwoModels) {
  // update.handed:1 is in the first step before the second model: that step does not happen.
  const int chunks = chunks_of(3, 1);
  const std::pair<std::string, std::uint64_t> cases[] = {
      {"update.handed:1:kill", 0},
      {"update.handed:2:kill", 1},
      {"update.kept:1:kill", 1},
      {concat("update.written:", chunks + 1, ":kill"), 1},
      {concat("update.begun:", 2 * chunks, ":kill"), 1},
      {"update.complete:1:kill", 1},
      {"update.complete:2:kill", 1},
      {"update.handed:3:kill", 1}};
  for (const auto& [failpoint, completed] : cases) {
    SCOPED_TRACE(failpoint);
    EXPECT_EQ(run(3, Program::kTwoModels, only(1, failpoint)).completed, completed);
  }
}

// Ranks put norms together before anything is written: they hand over twice in a step.
TEST_F(OneCopyKilled, FinishesAStepOfLamb) {
  const std::pair<const char*, std::uint64_t> cases[] = {
      {"update.handed:1:kill", 0},  {"update.begin:4:kill", 1},    {"update.handed:3:kill", 1},
      {"update.handed:4:kill", 2},  {"update.prepared:1:kill", 1}, {"update.kept:2:kill", 1},
      {"update.written:2:kill", 1}, {"update.chunk:2:kill", 1},    {"update.prepared:2:kill", 2},
      {"update.complete:2:kill", 2}};
  for (int ranks = 2; ranks <= kMostRanks; ++ranks) {
    const int rank = victim_of(ranks);
    for (const auto& [failpoint, completed] : cases) {
      SCOPED_TRACE(concat(ranks, " ranks, rank ", rank, " at ", failpoint));
      EXPECT_EQ(run(ranks, Program::kLamb, only(rank, failpoint)).completed, completed);
    }
  }
}

TEST_F(OneCopyKilled, FinishesAStepOfAnOptimizerOfLibTorch) {
  const std::pair<const char*, std::uint64_t> cases[] = {
      {"update.begin:2:kill", 1},    {"update.handed:1:kill", 1},   {"update.handed:2:kill", 2},
      {"update.prepared:1:kill", 1}, {"update.prepared:2:kill", 2}, {"update.kept:1:kill", 1},
      {"update.begun:2:kill", 1},    {"update.written:1:kill", 1},  {"update.written:3:kill", 2},
      {"update.chunk:3:kill", 2},    {"update.complete:2:kill", 2}};
  for (int ranks = 2; ranks <= kMostRanks; ++ranks) {
    const int rank = victim_of(ranks);
    for (const auto& [failpoint, completed] : cases) {
      SCOPED_TRACE(concat(ranks, " ranks, rank ", rank, " at ", failpoint));
      const Outcome outcome = run(ranks, Program::kLibTorch, only(rank, failpoint));
      EXPECT_EQ(outcome.ended, std::vector{rank});
      EXPECT_EQ(outcome.completed, completed);
    }
  }
}

TEST_F(OneCopyKilled, WhileItFinishesAnothersShareLeavesTheRestToTheThird) {
  for (const int finisher : {0, 1}) {
    const std::string after_own = concat(":", chunks_of(3, finisher) + 1, ":kill");
    for (const std::string& second :
         {std::string("update.taken:1:kill"), std::string("update.restored:1:kill"),
          "update.kept" + after_own, "update.begun" + after_own, "update.written" + after_own,
          "update.chunk" + after_own, std::string("update.complete:2:kill")}) {
      for (const std::string first : {"update.prepared:1:kill", "update.written:1:kill"}) {
        SCOPED_TRACE(concat("rank 2 at ", first, ", rank ", finisher, " at ", second));
        Faults faults = only(2, first);
        faults[static_cast<std::size_t>(finisher)] = second;
        EXPECT_EQ(run(3, Program::kAdamW, faults).completed, 1u);
      }
    }
  }
}

// A rank hands over twice in a step: its own gradients, and what the machines have added up.
TEST_F(OneCopyKilled, OnSeveralMachinesFinishesTheStepInFlight) {
  struct Case {
    const char* failpoint;
    std::uint64_t completed;
    bool are_machines_apart;
  };
  const Case cases[] = {{"update.handed:3:kill", 1, false},
                        {"update.begin:4:kill", 2, true},
                        {"update.handed:4:kill", 2, false},
                        {"update.kept:9:kill", 1, false}};
  for (const auto& [machines, victim] : {std::pair<std::string, int>{"0011", 2}, {"001", 0}}) {
    for (const auto& [failpoint, completed, are_apart] : cases) {
      SCOPED_TRACE(concat(machines, ", rank ", victim, " at ", failpoint));
      const Outcome outcome = run(machines, Program::kAdamW, only(victim, failpoint));
      EXPECT_EQ(outcome.ended, std::vector{victim});
      EXPECT_EQ(outcome.completed, completed);
      EXPECT_EQ(outcome.are_machines_apart, are_apart);
    }
  }
}

// Rank 0 is late: rank 1, which failed because of rank 2, has left the machine.
TEST_F(OneCopyKilled, OnAnotherMachineIsNamedByLateRanksToo) {
  const Outcome outcome = run("0011", Program::kFollowsAPeer, only(2, "update.handed:4:kill"));
  EXPECT_EQ(outcome.ended, std::vector{2});
  EXPECT_EQ(outcome.completed, 2u);
}

TEST_F(OneCopyKilled, BeforeItHandsOverChangesNothing) {
  for (int ranks = 2; ranks <= kMostRanks; ++ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      SCOPED_TRACE(concat(ranks, " ranks, rank ", rank));
      const Outcome outcome = run(ranks, Program::kAdamW, only(rank, "update.begin:2:kill"));
      EXPECT_EQ(outcome.ended, std::vector{rank});
      EXPECT_EQ(outcome.completed, 1u);
    }
  }
}

#endif

}  // namespace

int run_worker(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace lockstep::testing::one_copy_kill_tests
