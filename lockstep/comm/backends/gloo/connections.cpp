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

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

// For what was received before to be processed, on a machine that is busy.
constexpr milliseconds kToBeProcessed{3'000};

constexpr const char* kTcpPair = "N4gloo9transport3tcp4PairE";

}  // namespace

Connections::Connections(std::shared_ptr<::gloo::Context> context, int rank, int world_size)
    : context_(std::move(context)),
      rank_(rank),
      broken_since_(static_cast<std::size_t>(world_size)) {}

// Of other transports than TCP nothing is known.
bool Connections::is_connected(int peer) const {
  auto* const pair = context_->getPair(peer).get();
  if (pair == nullptr || std::strcmp(typeid(*pair).name(), kTcpPair) != 0) return true;
  return static_cast<::gloo::transport::tcp::Pair*>(pair)->isConnected();
}

bool Connections::are_lost(int peer) {
  const MutexLock lock(mutex_);
  const auto now = Clock::now();
  const auto is_lost = [&](int rank) LOCKSTEP_REQUIRES(mutex_) {
    auto& since = broken_since_[static_cast<std::size_t>(rank)];
    if (!since && !is_connected(rank)) since = now;
    return since && now - *since >= kToBeProcessed;
  };
  if (peer != kAll) return is_lost(peer);
  bool all = broken_since_.size() > 1;
  for (int rank = 0; rank < static_cast<int>(broken_since_.size()); ++rank) {
    if (rank != rank_ && !is_lost(rank)) all = false;
  }
  return all;
}

void Connections::check(int peer) {
  if (!are_lost(peer)) return;
  throw std::runtime_error(peer == kAll ? std::string("Connection closed by all other ranks")
                                        : concat("Connection closed by peer [", peer, "]"));
}

ConnectedWork::ConnectedWork(c10::intrusive_ptr<c10d::Work> work,
                             std::shared_ptr<Connections> connections)
    : work_(std::move(work)),
      connections_(std::move(connections)),
      next_look_(Clock::now() + Connections::kBetweenLooks) {}

bool ConnectedWork::fails() {
  const MutexLock lock(mutex_);
  if (error_) return true;
  const auto now = Clock::now();
  if (now < next_look_) return false;
  next_look_ = now + Connections::kBetweenLooks;
  try {
    connections_->check();
  } catch (...) {
    error_ = std::current_exception();
  }
  return error_ != nullptr;
}

bool ConnectedWork::isCompleted() {
  return work_->isCompleted() || fails();
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
  for (;;) {
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
