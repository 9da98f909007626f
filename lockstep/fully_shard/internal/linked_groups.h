#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/backends/hierarchical/failure_note.h"
#include "lockstep/comm/internal/comm_error.h"
#include "lockstep/comm/internal/group_failure.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {
class OperationError;
}  // namespace lockstep

namespace lockstep::inline internal {

class NativeBackend;

/// This rank's groups of a mesh, which end together: a rank that gives up, because a peer of one
/// group is lost, ends all of them, so that nobody waits for it in another. All ranks of the mesh
/// throw what the first of them noted in the store, with ranks of the group that new_group() was
/// first called on, as far as they reach the store.
/// Errors: rethrow() throws PeerLost, TimeoutError and PeerFailed; else the error itself.
class LinkedGroups final : public GroupFailure {
 public:
  /// Groups of another mesh that has one of them are linked with these, too. Where the launcher
  /// tells ranks of failures (InitOptions::while_waiting) it links nothing. Collective over the
  /// groups, of which the ranks form a grid.
  static void link(const std::vector<ProcessGroup>& groups);

  [[noreturn]] void rethrow() override;

 private:
  struct Member {
    std::string name;
    std::vector<int> ranks;  ///< as errors name them
    std::weak_ptr<NativeBackend> backend;
  };
  /// A failure as this rank sees it.
  struct Seen {
    UnnamedCommError error;
    bool by_itself = false;  ///< else it may be what follows from another rank's failure
  };

  LinkedGroups(const std::vector<ProcessGroup>& groups, hierarchical::FailureNote note);
  void add(const std::vector<ProcessGroup>& groups);
  Seen see(const OperationError& error) const;
  std::vector<int> lost_on_own_machine() const;
  void end_all() const;

  std::vector<Member> members_;
  std::string name_;  ///< of the group whose ranks are named
  int rank_ = 0;      ///< there
  hierarchical::FailureNote note_;
};

}  // namespace lockstep::inline internal
