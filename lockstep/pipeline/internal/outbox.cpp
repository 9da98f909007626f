#include "lockstep/pipeline/internal/outbox.h"

#include <chrono>
#include <utility>

namespace lockstep::inline internal {
namespace {

// A look costs a microsecond, and moves 256 KiB where the receiver has taken those before.
constexpr std::chrono::microseconds kBetweenLooks{100};

}  // namespace

void Outbox::add(Message message) {
  {
    const MutexLock lock(mutex_);
    messages_.push_back(std::move(message));
    if (needs_looks_) drop_completed();
    if (!needs_looks_ || is_looking_ || messages_.empty()) return;
    is_looking_ = true;
  }
  task_.start([this](const std::stop_token& stop) { look(stop); });
}

void Outbox::forget_taken(int peer, int position) {
  if (needs_looks_) return;  // Whoever looks lets go of it.
  const MutexLock lock(mutex_);
  std::erase_if(messages_, [&](const Message& message) LOCKSTEP_REQUIRES(mutex_) {
    const bool is_taken = message.peer == peer && message.taken_at <= position;
    if (is_taken) complete(message);
    return is_taken;
  });
}

void Outbox::finish() {
  task_.request_stop();
  task_.wait();
  const MutexLock lock(mutex_);
  for (const Message& message : messages_) complete(message);
  messages_.clear();
}

std::optional<Outbox::Failure> Outbox::take_failure() {
  const MutexLock lock(mutex_);
  return std::exchange(failure_, std::nullopt);
}

void Outbox::look(const std::stop_token& stop) {
  MutexLock lock(mutex_);
  for (;;) {
    drop_completed();
    if (messages_.empty() || stop.stop_requested()) break;
    stopped_.wait_for(lock.native(), stop, kBetweenLooks, [] { return false; });
  }
  is_looking_ = false;
}

void Outbox::drop_completed() {
  while (!messages_.empty() && messages_.front().work.is_completed()) {
    complete(messages_.front());
    messages_.pop_front();
  }
}

void Outbox::complete(const Message& message) {
  try {
    message.work.wait();
  } catch (...) {
    if (!failure_) failure_ = {std::current_exception(), message.operation, message.peer};
  }
}

}  // namespace lockstep::inline internal
