#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include <mpi.h>

namespace lockstep::mpi {

/// The bytes that go to or come from one rank.
struct Segment {
  int peer;
  std::byte* data;
  std::size_t bytes;
};

/// The ranks of one group, as MPI knows them. Held by the backend and by every work under way.
/// Threads: all but abort() and aborted() under the lock of mpi_runtime.h.
class Communicator {
 public:
  /// `world_ranks`: ranks in MPI_COMM_WORLD in the order of the group. All of them must be in this
  /// call: it waits for them.
  explicit Communicator(const std::vector<int>& world_ranks);
  /// Takes the lock. The communicator is freed unless MPI has ended before.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// A tag for the messages of one step of a collective. Given out in the order of the calls, so
  /// ranks agree on it whenever the step itself comes.
  int next_step_tag();
  /// The tag of a user's messages. Errors: UsageError when MPI has no such tag.
  int message_tag(int tag) const;

  // Each adds the requests that it starts.
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
