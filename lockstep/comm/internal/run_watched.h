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

/// Calls `work` on a thread of its own, and `check` on this one, before that and every few
/// milliseconds until `work` has returned: for what waits where nobody can end the wait.
/// `work` is given a flag that says whether it has been left.
/// Errors: SystemError where no thread can be made; what `work` throws; what `check` throws, at
/// once: the thread is left to itself then, with all that `work` holds.
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
