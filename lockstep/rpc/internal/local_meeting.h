#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/os/files/unique_fd.h"
#include "lockstep/rpc/internal/meeting.h"

namespace lockstep::rpc::inline internal {

/// Connects workers of one machine, network namespace and user, each pair by one Unix socket.
class LocalMeeting {
 public:
  /// Listens under a name of its own. Errors: SystemError.
  LocalMeeting();

  /// Puts on the card how this worker is found.
  void describe(WorkerCard& card) const;

  /// Collective, over all workers: the sockets to those of this machine, by rank, without those to
  /// which device maps say how tensors go. Errors: as a collective's; CommError naming a worker
  /// that cannot be reached.
  std::unordered_map<int, UniqueFd> connect(const ProcessGroup& group,
                                            const std::vector<WorkerCard>& cards,
                                            const Deadline& deadline);

 private:
  std::string name_;
  std::uint64_t token_;
  UniqueFd listener_;
};

}  // namespace lockstep::rpc::inline internal
