#include "lockstep/os/background_task.h"

#include <system_error>
#include <utility>

#include <pthread.h>
#include <signal.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

/// While it lives this thread takes no signals but those of its own faults; a thread that is made
/// meanwhile neither.
class WithoutSignals {
 public:
  WithoutSignals() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
      sigdelset(&all, fault);
    }
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~WithoutSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WithoutSignals(const WithoutSignals&) = delete;
  WithoutSignals& operator=(const WithoutSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

BackgroundTask::~BackgroundTask() {
  request_stop();
  finish();
  if (!error_) return;
  try {
    std::rethrow_exception(error_);
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, concat(operation_, ": ", error.what()));
  } catch (...) {
    log(LogLevel::kWarning, concat(operation_, ": it failed"));
  }
}

void BackgroundTask::start(std::function<void(const std::stop_token&)> action) {
  wait();
  const auto run = [this](const std::stop_token& stop,
                          const std::function<void(const std::stop_token&)>& what) {
    try {
      what(stop);
    } catch (...) {
      error_ = std::current_exception();
    }
  };
  try {
    const WithoutSignals without_signals;
    thread_ = std::jthread([run, action](const std::stop_token& stop) { run(stop, action); });
  } catch (const std::system_error&) {
    run(std::stop_token(), action);
  }
}

void BackgroundTask::wait() {
  finish();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void BackgroundTask::finish() noexcept {
  if (thread_.joinable()) thread_.join();
}

}  // namespace lockstep
