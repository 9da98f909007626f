#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/internal/comm_error.h"

namespace lockstep::hierarchical {

/// Why a group has ended, in the group's store: those whose connections broke only because another
/// rank gave up learn from it which rank failed first.
/// Threads: one at a time. Errors: none; who gets no answer of the store goes by what it knows.
class FailureNote {
 public:
  explicit FailureNote(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  /// Returns why the group has ended: what the first rank has noted, which may be this one.
  /// `saw_it_itself`: the failure, and not just what others made of it; else it waits a moment for
  /// the note of a rank that did.
  UnnamedCommError agree(const UnnamedCommError& error, bool saw_it_itself);

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace lockstep::hierarchical
