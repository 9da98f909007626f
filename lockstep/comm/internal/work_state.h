#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/internal/group_failure.h"
#include "lockstep/comm/internal/hang_report.h"
#include "lockstep/comm/work.h"

namespace lockstep::inline internal {

/// Identifies a collective in errors.
struct CollectiveName {
  const char* operation;  ///< "all_reduce"
  std::string group;      ///< name of the group
  int rank;               ///< rank of this process in the group
  /// Number of collectives that the group started before: equal on all ranks. Empty before the
  /// first.
  std::optional<std::uint64_t> sequence;
  std::chrono::milliseconds timeout;
  std::optional<int> peer = {};  ///< of a message: its sender or receiver
};

/// `ranks`: the ranks that caused the error, if not a message's peer.
ErrorFields fields_of(const CollectiveName& name, std::vector<int> ranks = {});

/// "all_reduce number 87 of group 'default' on rank 0"
std::string describe(const CollectiveName& name);

}  // namespace lockstep::inline internal

namespace lockstep {

struct Work::State {
  State(c10::intrusive_ptr<c10d::Work> started, CollectiveName its_name,
        std::optional<Deadline> its_deadline)
      : work(std::move(started)),
        name(std::move(its_name)),
        deadline(its_deadline),
        next_question(Deadline::Clock::now() + kBetweenQuestions) {}

  /// Interval between two calls of while_waiting.
  static constexpr std::chrono::milliseconds kBetweenQuestions{100};

  c10::intrusive_ptr<c10d::Work> work;
  CollectiveName name;
  std::optional<Deadline> deadline;            ///< empty: it starts with the wait
  c10::intrusive_ptr<c10d::Store> store = {};  ///< the group's; for finding missing ranks
  int world_size = 1;
  std::uint64_t recent_call = 0;  ///< ticket of the call that this work is part of
  bool ends_call = false;         ///< it is the last part
  /// Called between slices of a long wait, and by is_completed() on the thread that started the
  /// work; an exception from it fails the work. May be empty.
  std::function<void()> while_waiting = {};
  std::shared_ptr<GroupFailure> failure = {};  ///< the group's; may be null
  const std::thread::id started_by = std::this_thread::get_id();
  /// Held by the waiting thread: some backends wait forever if asked twice.
  mutable Mutex mutex;
  mutable std::atomic<bool> done{false};  ///< whether it has ended, well or not
  /// Error of a failed work.
  mutable std::exception_ptr error LOCKSTEP_GUARDED_BY(mutex);
  /// When is_completed() next calls while_waiting.
  mutable Deadline::Clock::time_point next_question LOCKSTEP_GUARDED_BY(mutex);
};

}  // namespace lockstep

namespace lockstep::inline internal {

/// Returns what the other ranks do. `is_explained`: the launcher has reported it for its machine.
using ReportHang = std::function<HangReport(bool is_explained)>;

/// Call it in a catch block: rethrows the backend's exception as TimeoutError, PeerLost or
/// CommError, with the collective. Lockstep's errors pass unchanged. `report_hang`, if given,
/// describes the other ranks after a timeout; `failure`, if given, has the last word.
[[noreturn]] void rethrow_named(const CollectiveName& name, const ReportHang& report_hang = {},
                                GroupFailure* failure = nullptr);

}  // namespace lockstep::inline internal
