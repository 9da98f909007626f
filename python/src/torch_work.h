#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/work.h"
#include "python/src/own_process.h"

namespace lockstep::python {

/// One collective or message under way, and the rest of its work when it is complete: results that
/// were received elsewhere go to where the caller wants them.
/// Threads: any. Errors: those of Work.
class Part {
 public:
  /// `write_results` may be empty.
  Part(Work work, std::function<void()> write_results)
      : work_(std::move(work)), write_results_(std::move(write_results)) {}

  bool is_completed() const;
  bool writes_results() const { return write_results_ != nullptr; }
  /// Blocks until the results are in place; of several threads one waits for the work. Returns the
  /// work's error, the same each time. Errors, while another thread waits: what a signal handler
  /// raises, and a UsageError in a signal handler.
  std::exception_ptr complete();

 private:
  enum class State { kStarted, kAwaited, kEnded };

  std::exception_ptr wait_and_write() const;

  const Work work_;
  const std::function<void()> write_results_;
  mutable internal::Mutex mutex_;  // not held while anything is waited for or called
  std::condition_variable changed_;
  State state_ LOCKSTEP_GUARDED_BY(mutex_) = State::kStarted;
  std::exception_ptr error_ LOCKSTEP_GUARDED_BY(mutex_);
};

/// The c10d::Work of a call: one Part or, for coalesced calls, several.
/// Threads: any. Lifetime: holds all tensors until complete.
/// Errors: as rethrow_for_python, the same each time.
class TorchWork final : public c10d::Work {
 public:
  struct Call {
    c10d::OpType op_type;
    const char* title;  ///< "lockstep:all_reduce", for PyTorch's profiler
    int rank;
    std::uint64_t sequence;
    std::vector<at::Tensor> inputs;   ///< for the profiler
    std::vector<at::Tensor> outputs;  ///< what result() returns
    /// What the backend's getError() returns.
    std::shared_ptr<std::atomic<c10d::ErrorType>> error_of_backend;
    OwnProcess process;              ///< works of a forked one's parent are errors in it
    std::optional<int> source = {};  ///< of a receive from one rank
  };

  explicit TorchWork(Call call);

  /// Before anybody else sees this work.
  void add(std::shared_ptr<Part> part) { parts_.push_back(std::move(part)); }
  /// Of a receive from any rank: what knows the rank. Before anybody else sees this work.
  void set_message(c10::intrusive_ptr<c10d::Work> message) { message_ = std::move(message); }
  const std::vector<std::shared_ptr<Part>>& parts() const { return parts_; }
  /// Whether results are copied to where the caller wants them when this ends.
  bool writes_results() const;
  /// Whether it has ended, without an error. Unlike isSuccess() it moves nothing on.
  bool has_succeeded() const;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override {}
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return call_.outputs; }
  std::uint64_t getSequencenumber() const override { return call_.sequence; }
  /// Inside a backward pass the work is complete when this returns: comm hooks then run in the same
  /// order on every rank. Elsewhere the progress thread completes the future.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;

  /// For the end of the program: futures that nobody would complete fail. The work may still be
  /// waited for.
  void fail_futures();

 private:
  enum class State {
    kStarted,
    kMarking,  ///< the results are there; a thread completes the futures and runs their callbacks
    kEnded,
  };

  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
  bool parts_are_completed() const;
  bool has_ended() const;
  void check_process() const;
  /// Waits for all parts, writes the results and completes the futures, or leaves the latter to the
  /// thread that does that already. Errors: what a signal handler raises while another thread
  /// waits.
  void end();
  /// The same, and waits for that thread. Errors: what a signal handler raises.
  void end_and_wait_for_futures();
  void throw_if_failed() const;
  FuturePtr future(FuturePtr TorchWork::*slot, const c10::TypePtr& type);
  void mark(const FuturePtr& future, bool is_result) const;

  Call call_;
  std::vector<std::shared_ptr<Part>> parts_;
  c10::intrusive_ptr<c10d::Work> message_;
  mutable internal::Mutex state_mutex_;  // not held while anything is waited for or called
  std::condition_variable ended_;
  State state_ LOCKSTEP_GUARDED_BY(state_mutex_) = State::kStarted;
  std::thread::id marked_by_ LOCKSTEP_GUARDED_BY(state_mutex_);
  std::exception_ptr error_ LOCKSTEP_GUARDED_BY(state_mutex_);
  FuturePtr future_ LOCKSTEP_GUARDED_BY(state_mutex_);
  FuturePtr result_future_ LOCKSTEP_GUARDED_BY(state_mutex_);
};

}  // namespace lockstep::python
