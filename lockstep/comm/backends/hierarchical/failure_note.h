#pragma once

#include <optional>
#include <utility>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/internal/comm_error.h"

namespace lockstep::hierarchical {

/// Why a group failed, in the group's store. Ranks whose connections broke only because another
/// rank gave up read there which rank failed first. A rank whose timeout expired says so there: who
/// waited for it knows then that it is not stuck, but waits for somebody too.
/// Threads: one at a time.
/// Errors: none.
class FailureNote {
 public:
  FailureNote(c10::intrusive_ptr<c10d::Store> store, int rank)
      : store_(std::move(store)), rank_(rank) {}

  /// Returns the error that the first rank noted, possibly this one. `saw_it_itself`: this rank saw
  /// the failure itself; else it waits briefly for the note of a rank that did. A timeout it never
  /// sees itself: the ranks that it waited for may wait themselves, and only who says nothing of
  /// that is named. Empty if it cannot reach the store.
  std::optional<UnnamedCommError> agree(const UnnamedCommError& error, bool saw_it_itself);
  /// Says that a timeout of this rank has expired, of which it notes no error.
  void say_that_it_waits() const;

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
};

}  // namespace lockstep::hierarchical
