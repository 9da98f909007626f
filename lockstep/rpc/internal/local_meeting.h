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
  /// Listens under a unique name.
  /// Errors: SystemError.
  LocalMeeting();

  /// Writes the address of this worker on its card.
  void describe(WorkerDescription& card) const;

  /// The sockets to workers of this machine, by rank, except those for which device maps exist.
  /// Collective over all workers.
  /// Errors: as a collective's; CommError that names a worker that cannot be reached.
  std::unordered_map<int, UniqueFd> connect(const ProcessGroup& group,
                                            const std::vector<WorkerDescription>& cards,
                                            const Deadline& deadline);

 private:
  std::string name_;
  std::uint64_t token_;
  UniqueFd listener_;
};

}  // namespace lockstep::rpc::inline internal
