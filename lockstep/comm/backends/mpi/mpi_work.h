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

/// A collective as steps: each starts requests, and the next is taken when they are complete. The
/// last may start none and only compute.
/// Whoever waits for or asks after any work drives all works of the process, so that ranks may wait
/// for theirs in different orders. There is no thread behind it.
/// Threads: any. Lifetime: holds the tensors until MPI has let go of them, which after a deadline
/// may be never. Errors: wait throws std::runtime_error ("timed out ..." at the deadline).
class MpiWork final : public c10d::Work {
 public:
  using Step = std::function<void(const Communicator&, std::vector<MPI_Request>&)>;

  struct Plan {
    std::vector<Step> steps;
    std::vector<at::Tensor> tensors;  ///< what the steps read and write, scratch included
  };

  /// Takes the first step.
  static c10::intrusive_ptr<MpiWork> start(std::shared_ptr<Communicator> communicator, Plan plan,
                                           std::chrono::milliseconds timeout);

  MpiWork(std::shared_ptr<Communicator> communicator, Plan plan, std::chrono::milliseconds timeout);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// Gives up after `timeout` (0: at the work's own deadline), and may be asked again.
  bool wait(std::chrono::milliseconds timeout) override;

 private:
  static void drive_all();
  bool drive();       // Under the lock. Returns whether nothing of the work is left with MPI.
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
