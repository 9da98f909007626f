#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include <mpi.h>

namespace lockstep::mpi {

/// Bytes to send to, or receive from, one rank.
struct Segment {
  int peer;
  std::byte* data;
  std::size_t bytes;
};

/// An MPI communicator of a group. The backend and every running work hold it.
/// Threads: all methods under the lock of mpi_runtime.h, except abort() and aborted().
class Communicator {
 public:
  /// `world_ranks`: ranks in MPI_COMM_WORLD in the order of the group. Collective among them.
  explicit Communicator(const std::vector<int>& world_ranks);
  /// Takes the lock. Frees the communicator unless MPI has been finalized.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// A tag for the messages of one step of a collective. Tags are taken in the order of calls, so
  /// ranks agree on them whenever the step runs.
  int next_step_tag();
  /// MPI's tag for a user's tag.
  /// Errors: UsageError if MPI has no such tag.
  int message_tag(int tag) const;

  // Each appends the requests that it starts.
  void send(const Segment& segment, int tag, std::vector<MPI_Request>& requests) const;
  void receive(const Segment& segment, int tag, std::vector<MPI_Request>& requests) const;
  void broadcast(const Segment& from_root, std::vector<MPI_Request>& requests) const;
  void barrier(std::vector<MPI_Request>& requests) const;

  void abort() { aborted_ = true; }
  bool aborted() const { return aborted_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 0;
  int tag_limit_ = 0;
  int steps_ = 0;
  std::atomic<bool> aborted_{false};
};

}  // namespace lockstep::mpi
