#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/mutex.h"

namespace gloo {
class Context;
}

namespace lockstep::gloo_backend {

/// The connections of a group of Gloo to its other ranks. Gloo does not end an operation of which a
/// part is already being sent or received when the connection breaks: it would wait until its
/// timeout. So each wait for an operation also looks here.
/// Threads: any.
/// Lifetime: keeps Gloo's context, not the group.
class Connections {
 public:
  using Clock = Deadline::Clock;

  Connections(std::shared_ptr<::gloo::Context> context, int rank, int world_size);

  /// Closes all connections, for this rank to leave the group.
  void close();

  /// Whether the connection to `peer` broke so long ago that an operation which began at `begun`
  /// and is incomplete stays so: all that was received before has been processed. kAll: the
  /// connections to all other ranks. A rank may end while the others still exchange, so that of a
  /// group of more than two a single broken connection says nothing about a collective.
  bool are_lost(int peer, Clock::time_point begun);
  /// What an operation fails with if are_lost(). In the words of Gloo.
  std::exception_ptr error(int peer);

  static constexpr int kAll = -1;
  /// How often a wait looks.
  static constexpr std::chrono::milliseconds kBetweenLooks{500};

 private:
  struct Connection {
    Clock::time_point broken_at{};  ///< as first seen
    Clock::time_point seen_at{};    ///< when it was counted last
    int looks = 0;                  ///< since it broke, kBetweenLooks apart
  };

  bool is_connected(int peer) const;
  bool is_lost(int peer, Clock::time_point begun) LOCKSTEP_REQUIRES(mutex_);

  const std::shared_ptr<::gloo::Context> context_;
  const int rank_;
  Mutex mutex_;
  std::vector<Connection> by_rank_ LOCKSTEP_GUARDED_BY(mutex_);
  bool is_closed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

/// A collective of Gloo that fails when the connections to all other ranks are lost.
/// Threads: any.
/// Errors: Gloo's, and those of Connections.
class ConnectedWork final : public c10d::Work {
 public:
  ConnectedWork(c10::intrusive_ptr<c10d::Work> work, std::shared_ptr<Connections> connections);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  void synchronize() override { work_->synchronize(); }
  /// Errors: WaitExpired too.
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override { work_->abort(); }
  /// Gloo's: it stays incomplete where the connections are lost.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return work_->getFuture(); }

 private:
  /// Whether it is incomplete and the connections are lost; notes the error then.
  bool fails();

  const c10::intrusive_ptr<c10d::Work> work_;
  const std::shared_ptr<Connections> connections_;
  const Connections::Clock::time_point begun_;
  mutable Mutex mutex_;
  Connections::Clock::time_point next_look_ LOCKSTEP_GUARDED_BY(mutex_);
  std::exception_ptr error_ LOCKSTEP_GUARDED_BY(mutex_) = {};
};

}  // namespace lockstep::gloo_backend
