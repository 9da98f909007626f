#pragma once

#include <exception>
#include <functional>
#include <stop_token>
#include <string>
#include <thread>

namespace lockstep::inline internal {

/// Runs one action at a time on a separate thread while the caller continues.
/// Threads: one caller's; the action must not call it. The thread receives no signals. If no thread
/// can be created, the action runs in start().
/// Lifetime: the destructor requests an action to stop and waits for its end; it logs an error that
/// wait() has not thrown as a warning.
class BackgroundTask {
 public:
  /// `operation`: for the log, "write a snapshot in the background".
  explicit BackgroundTask(std::string operation) : operation_(std::move(operation)) {}
  ~BackgroundTask();
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  /// Waits for the previous action, as wait() does, and starts this one. request_stop() and the
  /// destructor trigger the token.
  void start(const std::function<void(const std::stop_token&)>& action);

  /// Returns when no action runs.
  /// Errors: what the action threw, once.
  void wait();

  /// Like wait(), but keeps the error for wait().
  void finish() noexcept;
  /// After finish(): whether the last action failed and wait() has not thrown its error yet.
  bool has_failed() const { return error_ != nullptr; }

  void request_stop() { thread_.request_stop(); }

 private:
  std::string operation_;
  std::exception_ptr error_;  ///< Written by the action's thread, read when that has ended.
  std::jthread thread_;
};

}  // namespace lockstep::inline internal
