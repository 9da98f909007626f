#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Work;
}

namespace lockstep {

/// What an error message says of a collective.
struct CollectiveName {
  const char* operation;  ///< "all_reduce"
  std::string group;      ///< name of the group
  int rank;               ///< rank of this process in the group
  std::uint64_t
      sequence;  ///< how many collectives this group started before, the same on all ranks
  std::chrono::milliseconds timeout;
};

/// A collective under way. Copies refer to the same collective.
/// Threads: any may wait. Lifetime: holds the tensors until complete.
class [[nodiscard]] Work {
 public:
  /// Complete from the start: what a collective of one rank returns.
  Work() = default;
  Work(c10::intrusive_ptr<c10d::Work> work, CollectiveName name);

  bool is_completed() const;

  /// Blocks until the collective is complete (for CUDA tensors: until the current stream is made to
  /// wait for it). Errors: TimeoutError, PeerLost, CommError, each naming the operation, rank,
  /// sequence number and deadline. After an error the group is of no further use.
  void wait() const;

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::shared_ptr<const CollectiveName> name_;
};

}  // namespace lockstep
