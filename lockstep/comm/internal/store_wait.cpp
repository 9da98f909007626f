#include "lockstep/comm/internal/store_wait.h"

#include <algorithm>

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/exception.h>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kReportEvery{10'000};

std::vector<int> missing_keys(c10d::Store& store, const std::vector<std::string>& keys) {
  std::vector<int> missing;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!store.check({keys[i]})) missing.push_back(static_cast<int>(i));
  }
  return missing;
}

}  // namespace

std::vector<int> wait_for_keys(c10d::Store& store, const std::vector<std::string>& keys,
                               const Deadline& deadline,
                               const std::function<void(const std::vector<int>&)>& on_wait) {
  const QuietC10d quiet;
  for (;;) {
    // At least a millisecond: stores read 0 as "no timeout".
    const auto slice = std::clamp(deadline.remaining(), milliseconds(1), kReportEvery);
    try {
      store.wait(keys, slice);
      return {};
    } catch (const c10::Error&) {
      // Past this slice; whether keys are missing or the store is gone, the next call tells.
    }
    auto missing = missing_keys(store, keys);
    if (missing.empty() || deadline.passed()) return missing;
    if (on_wait) on_wait(missing);
  }
}

std::string join_numbers(const std::vector<int>& numbers) {
  constexpr std::size_t kMost = 16;
  std::string text;
  for (std::size_t i = 0; i < std::min(numbers.size(), kMost); ++i) {
    text += concat(i == 0 ? "" : ", ", numbers[i]);
  }
  if (numbers.size() > kMost) text += concat(" and ", numbers.size() - kMost, " more");
  return text;
}

}  // namespace lockstep::inline internal
