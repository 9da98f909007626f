#include "lockstep/os/process/background_task.h"

#include <system_error>
#include <utility>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/os/process/without_signals.h"

namespace lockstep::inline internal {

BackgroundTask::~BackgroundTask() {
  request_stop();
  finish();
  if (!error_) return;
  try {
    std::rethrow_exception(error_);
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, concat(operation_, ": ", error.what()));
  } catch (...) {
    log(LogLevel::kWarning, concat(operation_, ": failed"));
  }
}

void BackgroundTask::start(const std::function<void(const std::stop_token&)>& action) {
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

}  // namespace lockstep::inline internal
