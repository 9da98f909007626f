#pragma once

#include <exception>
#include <functional>
#include <stop_token>
#include <string>
#include <thread>

namespace lockstep::inline internal {

/// Does one thing at a time on a thread of its own while the caller goes on.
/// Threads: those of one caller; the action must not call it. The thread takes no signals: they
/// reach those of the program. Where no thread can be made the action runs in start().
/// Lifetime: the destructor asks an action that waits for others to stop, and waits for its end; an
/// error that nobody took is a warning in the log.
class BackgroundTask {
 public:
  /// What is done, for the log: "write a snapshot in the background".
  explicit BackgroundTask(std::string operation) : operation_(std::move(operation)) {}
  ~BackgroundTask();
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  /// Waits for the action before, as wait() does, and begins this one. The token is asked to stop
  /// by request_stop() and the destructor.
  void start(const std::function<void(const std::stop_token&)>& action);

  /// Returns when nothing is under way. Errors: what the action threw, once.
  void wait();

  /// As wait(), but its error stays for that.
  void finish() noexcept;
  /// Whether the last action ended with an error that wait() has not thrown yet; after finish().
  bool has_failed() const { return error_ != nullptr; }

  void request_stop() { thread_.request_stop(); }

 private:
  std::string operation_;
  std::exception_ptr error_;  ///< Written by the action's thread, read when that has ended.
  std::jthread thread_;
};

}  // namespace lockstep::inline internal
