#pragma once

#include <optional>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/internal/comm_error.h"

namespace lockstep::hierarchical {

/// Why a group failed, in the group's store. Ranks whose connections broke only because another
/// rank gave up read there which rank failed first.
/// Threads: one at a time.
/// Errors: none.
class FailureNote {
 public:
  explicit FailureNote(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  /// Returns the error that the first rank noted, possibly this one. `saw_it_itself`: this rank saw
  /// the failure itself; else it waits briefly for the note of a rank that did. Empty if it cannot
  /// reach the store.
  std::optional<UnnamedCommError> agree(const UnnamedCommError& error, bool saw_it_itself);

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace lockstep::hierarchical
