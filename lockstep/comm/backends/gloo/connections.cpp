#include "lockstep/comm/backends/gloo/connections.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <typeinfo>
#include <utility>

#include <gloo/context.h>
#include <gloo/transport/tcp/pair.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/comm_error.h"

namespace lockstep::gloo_backend {
namespace {

using std::chrono::milliseconds;

// For what was received before to be processed, on a machine that is busy. Looks are counted, as a
// process that was stopped meanwhile has processed nothing.
constexpr int kLooksToBeProcessed = 10;
// What is left to do takes no longer than what was done before the connection broke, and this.
constexpr std::chrono::seconds kLongestProcessing{60};

constexpr const char* kTcpPair = "N4gloo9transport3tcp4PairE";

}  // namespace

Connections::Connections(std::shared_ptr<::gloo::Context> context, int rank, int world_size)
    : context_(std::move(context)), rank_(rank), by_rank_(static_cast<std::size_t>(world_size)) {}

void Connections::close() {
  {
    const MutexLock lock(mutex_);
    is_closed_ = true;
  }
  context_->closeConnections();
}

// Of other transports than TCP nothing is known.
bool Connections::is_connected(int peer) const {
  auto* const pair = context_->getPair(peer).get();
  if (pair == nullptr || std::strcmp(typeid(*pair).name(), kTcpPair) != 0) return true;
  return static_cast<::gloo::transport::tcp::Pair*>(pair)->isConnected();
}

bool Connections::is_lost(int peer, Clock::time_point begun) {
  Connection& connection = by_rank_[static_cast<std::size_t>(peer)];
  const auto now = Clock::now();
  if (connection.looks == 0) {
    if (is_connected(peer)) return false;
    connection = {.broken_at = now, .seen_at = now, .looks = 1};
  } else if (now - connection.seen_at >= kBetweenLooks) {
    connection.seen_at = now;
    ++connection.looks;
  }
  const auto processing =
      std::min<Clock::duration>(connection.broken_at - begun, kLongestProcessing);
  return connection.looks > kLooksToBeProcessed && connection.looks * kBetweenLooks > processing;
}

bool Connections::are_lost(int peer, Clock::time_point begun) {
  const MutexLock lock(mutex_);
  if (peer != kAll) return is_lost(peer, begun);
  bool all = by_rank_.size() > 1;
  for (int rank = 0; rank < static_cast<int>(by_rank_.size()); ++rank) {
    if (rank != rank_ && !is_lost(rank, begun)) all = false;
  }
  return all;
}

std::exception_ptr Connections::error(int peer) {
  const MutexLock lock(mutex_);
  std::string text = "this rank has aborted the group";
  if (!is_closed_) {
    text = peer == kAll ? std::string("Connection closed to all other ranks")
                        : concat("Connection closed by peer [", peer, "]");
  }
  return std::make_exception_ptr(std::runtime_error(text));
}

ConnectedWork::ConnectedWork(c10::intrusive_ptr<c10d::Work> work,
                             std::shared_ptr<Connections> connections)
    : work_(std::move(work)),
      connections_(std::move(connections)),
      begun_(Connections::Clock::now()),
      next_look_(begun_ + Connections::kBetweenLooks) {}

bool ConnectedWork::fails() {
  const MutexLock lock(mutex_);
  if (error_) return true;
  const auto now = Connections::Clock::now();
  if (now < next_look_) return false;
  next_look_ = now + Connections::kBetweenLooks;
  if (!connections_->are_lost(Connections::kAll, begun_) || work_->isCompleted()) return false;
  error_ = connections_->error(Connections::kAll);
  return true;
}

bool ConnectedWork::isCompleted() {
  return fails() || work_->isCompleted();
}

bool ConnectedWork::isSuccess() const {
  return !exception() && work_->isSuccess();
}

std::exception_ptr ConnectedWork::exception() const {
  const MutexLock lock(mutex_);
  return error_ ? error_ : work_->exception();
}

bool ConnectedWork::wait(milliseconds timeout) {
  const std::optional<Deadline> until =
      timeout == kNoTimeout ? std::nullopt : std::optional(Deadline::after(timeout));
  while (!work_->isCompleted()) {
    if (fails()) std::rethrow_exception(exception());
    milliseconds slice = Connections::kBetweenLooks;
    if (until) slice = std::clamp(until->remaining(), milliseconds(1), slice);
    try {
      return work_->wait(slice);
    } catch (const std::exception&) {
      if (work_->isCompleted()) break;
    }
    if (until && until->passed()) {
      throw WaitExpired(concat("timed out after ", timeout.count(), " ms of waiting"));
    }
  }
  return work_->wait(kNoTimeout);  // It is complete, and throws what it failed with.
}

}  // namespace lockstep::gloo_backend
