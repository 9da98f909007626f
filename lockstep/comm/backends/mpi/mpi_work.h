#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include <mpi.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/comm/backends/mpi/mpi_communicator.h"

namespace lockstep::mpi {

/// A collective as steps: each starts requests, and the next runs when they are complete. The last
/// may start none and only compute. A wait for or a poll of any work advances all works of the
/// process, so ranks may wait for theirs in different orders. There is no thread.
/// Threads: any.
/// Lifetime: holds the tensors until MPI has released them, which after a deadline may be never.
/// Errors: wait throws std::runtime_error ("timed out ..." at the deadline).
class MpiWork final : public c10d::Work {
 public:
  using Step = std::function<void(const Communicator&, std::vector<MPI_Request>&)>;

  struct Plan {
    std::vector<Step> steps;
    std::vector<at::Tensor> tensors;  ///< what the steps read and write, scratch included
  };

  /// Runs the first step.
  static c10::intrusive_ptr<MpiWork> start(std::shared_ptr<Communicator> communicator, Plan plan,
                                           std::chrono::milliseconds timeout);

  MpiWork(std::shared_ptr<Communicator> communicator, Plan plan, std::chrono::milliseconds timeout);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// Stops waiting after `timeout` (0: at the work's own deadline); may be called again.
  bool wait(std::chrono::milliseconds timeout) override;

 private:
  static void drive_all();
  bool drive();       // Under the lock. Returns whether MPI has no request of the work left.
  void take_steps();  // Under the lock.
  void fail(std::exception_ptr error);

  const std::shared_ptr<Communicator> communicator_;
  Plan plan_;  // Under the lock, as what follows.
  std::size_t next_step_ = 0;
  std::vector<MPI_Request> requests_;
  std::exception_ptr error_;  // Constant once `ended_`.
  const std::chrono::milliseconds timeout_;
  const Deadline deadline_;
  std::atomic<bool> ended_{false};
};

}  // namespace lockstep::mpi
