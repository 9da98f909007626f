#include "lockstep/comm/internal/hang_report.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/store_wait.h"
#include "lockstep/comm/internal/work_state.h"

namespace lockstep::inline internal {
namespace {

// Ranks that wait for each other began to within the work between two collectives.
constexpr std::chrono::milliseconds kGrace{2'000};
constexpr std::chrono::milliseconds kGraceWhenExplained{200};

std::chrono::milliseconds grace_of(bool is_explained) {
  return is_explained ? kGraceWhenExplained : kGrace;
}

std::string call_of(const CollectiveName& name) {
  return name.sequence ? concat(name.operation, " number ", *name.sequence)
                       : std::string(name.operation);
}

HangReport ask_others(c10d::Store& store, int world_size, const CollectiveName& name,
                      bool is_explained) {
  try {
    const auto key = [](int rank) { return concat("hang/", rank); };
    const std::string own = call_of(name);
    store.set(key(name.rank), own);
    std::vector<std::string> keys;
    for (int rank = 0; rank < world_size; ++rank) keys.push_back(key(rank));
    const std::vector<int> silent =
        wait_for_keys(store, keys, Deadline::after(grace_of(is_explained)));
    HangReport report;
    for (int rank = 0; rank < world_size; ++rank) {
      if (std::find(silent.begin(), silent.end(), rank) != silent.end()) continue;
      const std::string theirs = store.get_to_str(key(rank));
      if (theirs == own) continue;
      report.text += concat(report.text.empty() ? "" : ", ", "rank ", rank, " waits in ", theirs);
      report.ranks.push_back(rank);
    }
    if (!silent.empty()) {
      report.text += concat(report.text.empty() ? "" : ", ", "no report from rank",
                            silent.size() > 1 ? "s " : " ", join_numbers(silent));
      report.ranks.insert(report.ranks.end(), silent.begin(), silent.end());
      std::ranges::sort(report.ranks);
    }
    return report;
  } catch (const std::exception&) {
    return {};  // whoever served the store is gone
  }
}

}  // namespace

HangReport report_hang(const c10::intrusive_ptr<c10d::Store>& store, int world_size,
                       const CollectiveName& name, bool is_explained) {
  // On a thread of its own: whoever serves the store may be the one that is stuck, and a store's
  // client waits for it without limit.
  std::promise<HangReport> promise;
  std::future<HangReport> answer = promise.get_future();
  std::thread([store, world_size, name, is_explained, promise = std::move(promise)]() mutable {
    promise.set_value(ask_others(*store, world_size, name, is_explained));
  }).detach();
  if (answer.wait_for(2 * grace_of(is_explained)) != std::future_status::ready) return {};
  return answer.get();
}

}  // namespace lockstep::inline internal
