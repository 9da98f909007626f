#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/os/process/without_signals.h"

namespace lockstep::inline internal {

/// Runs `work` on a separate thread, and `check` on this one, first and then every few milliseconds
/// until `work` has returned: for waits that cannot be interrupted. The flag passed to `work`
/// becomes true when it was abandoned.
/// Errors: SystemError if no thread can be created; what `work` throws; what `check` throws, at
/// once: the thread then continues alone, with everything that `work` holds.
template <class Work>
std::invoke_result_t<Work, const std::atomic<bool>&> run_watched(
    Work work, const std::function<void()>& check) {
  using Result = std::invoke_result_t<Work, const std::atomic<bool>&>;
  constexpr std::chrono::milliseconds kCheckEvery{10};
  check();
  auto is_left = std::make_shared<std::atomic<bool>>(false);
  std::packaged_task<Result()> task(
      [is_left, held = std::optional<Work>(std::move(work))]() mutable {
        // What it holds has been let go of by the time that its result is there.
        Work own(std::move(*held));
        held.reset();
        return own(*is_left);
      });
  std::future<Result> result = task.get_future();
  try {
    const WithoutSignals without_signals;
    std::thread(std::move(task)).detach();
  } catch (const std::system_error& error) {
    throw SystemError("start a thread", error.code().value());
  }
  while (result.wait_for(kCheckEvery) != std::future_status::ready) {
    try {
      check();
    } catch (...) {
      *is_left = true;
      throw;
    }
  }
  return result.get();
}

}  // namespace lockstep::inline internal
