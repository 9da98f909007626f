#include "lockstep/comm/backends/mpi/mpi_work.h"

#include <list>
#include <stdexcept>
#include <thread>

#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/backends/mpi/mpi_runtime.h"

namespace lockstep::mpi {
namespace {

// All works that MPI has requests of. Guarded by the lock; never destroyed, since MPI may write to
// the tensors of a work that was given up as long as the process lives.
std::list<c10::intrusive_ptr<MpiWork>>& works_under_way() {
  static auto* works = new std::list<c10::intrusive_ptr<MpiWork>>();
  return *works;
}

// Between two looks at what is under way: at once at first, then letting others run, then resting,
// so that a rank that waits long takes no core from those it waits for.
class Backoff {
 public:
  void pause() {
    ++looks_;
    if (looks_ < kLooksAtOnce) return;
    if (looks_ < kLooksYielding) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kRest);
    }
  }

 private:
  static constexpr int kLooksAtOnce = 100;
  static constexpr int kLooksYielding = 20'000;  // About 20 ms.
  static constexpr std::chrono::microseconds kRest{100};
  int looks_ = 0;
};

}  // namespace

MpiWork::MpiWork(std::shared_ptr<Communicator> communicator, Plan plan,
                 std::chrono::milliseconds timeout)
    : communicator_(std::move(communicator)),
      plan_(std::move(plan)),
      timeout_(timeout),
      deadline_(Deadline::after(timeout)) {}

c10::intrusive_ptr<MpiWork> MpiWork::start(std::shared_ptr<Communicator> communicator, Plan plan,
                                           std::chrono::milliseconds timeout) {
  auto work = c10::make_intrusive<MpiWork>(std::move(communicator), std::move(plan), timeout);
  const auto locked = lock();
  if (!work->drive()) works_under_way().push_back(work);
  return work;
}

bool MpiWork::isCompleted() {
  if (!ended_) drive_all();
  return ended_;
}

bool MpiWork::isSuccess() const {
  return ended_ && !error_;
}

std::exception_ptr MpiWork::exception() const {
  return ended_ ? error_ : nullptr;
}

bool MpiWork::wait(std::chrono::milliseconds timeout) {
  const auto limit = timeout == kNoTimeout ? deadline_ : Deadline::after(timeout);
  for (Backoff backoff; !isCompleted(); backoff.pause()) {
    if (timeout != kNoTimeout && limit.passed()) {
      throw std::runtime_error(concat("timed out after ", timeout.count(), " ms of waiting"));
    }
  }
  if (error_) std::rethrow_exception(error_);
  return true;
}

void MpiWork::drive_all() {
  std::list<c10::intrusive_ptr<MpiWork>> finished;  // Let go of without the lock.
  {
    const auto locked = lock();
    auto& works = works_under_way();
    for (auto work = works.begin(); work != works.end();) {
      const auto current = work++;
      if ((*current)->drive()) finished.splice(finished.end(), works, current);
    }
  }
}

bool MpiWork::drive() {
  try {
    take_steps();
    if (!ended_ && communicator_->aborted()) {
      throw std::runtime_error("the group was aborted by this rank");
    }
    if (!ended_ && deadline_.passed()) {
      throw std::runtime_error(concat("timed out after ", timeout_.count(), " ms"));
    }
  } catch (...) {
    fail(std::current_exception());
  }
  return ended_ && requests_.empty();
}

void MpiWork::take_steps() {
  for (;;) {
    int complete = 1;
    if (!requests_.empty()) {
      check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &complete,
                        MPI_STATUSES_IGNORE),
            "MPI_Testall");
    }
    if (complete == 0) return;
    requests_.clear();
    if (ended_) return;  // Given up before: nothing more is started.
    if (next_step_ == plan_.steps.size()) {
      plan_ = {};
      ended_ = true;
      return;
    }
    plan_.steps[next_step_++](*communicator_, requests_);
  }
}

void MpiWork::fail(std::exception_ptr error) {
  if (ended_) {
    requests_.clear();  // MPI reported a failure of what was given up already.
    return;
  }
  error_ = std::move(error);
  ended_ = true;
}

}  // namespace lockstep::mpi
