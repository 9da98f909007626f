#include "lockstep/base/recent_calls.h"

#include <algorithm>
#include <cstring>

namespace lockstep {
namespace {

// Ready before any constructor runs and never destroyed: a crash may come at any time.
constinit RecentCalls calls_of_process;

}  // namespace

RecentCalls& recent_calls() noexcept {
  return calls_of_process;
}

std::uint64_t RecentCalls::start(const char* operation, std::string_view group,
                                 std::optional<std::uint64_t> sequence) noexcept {
  std::array<std::uint64_t, 3> letters{};
  std::memcpy(letters.data(), group.data(), std::min(group.size(), sizeof(letters) - 1));

  const std::uint64_t ticket = last_ticket_.fetch_add(1, std::memory_order_relaxed) + 1;
  Slot& slot = slots_[ticket % kKept];
  slot.ticket.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  slot.operation.store(operation, std::memory_order_relaxed);
  for (std::size_t i = 0; i < letters.size(); ++i) {
    slot.group[i].store(letters[i], std::memory_order_relaxed);
  }
  slot.sequence.store(sequence.value_or(0), std::memory_order_relaxed);
  slot.has_sequence.store(sequence.has_value(), std::memory_order_relaxed);
  slot.ticket.store(ticket, std::memory_order_release);
  return ticket;
}

void RecentCalls::end(std::uint64_t ticket) noexcept {
  if (ticket == 0) return;
  slots_[ticket % kKept].ended_ticket.store(ticket, std::memory_order_relaxed);
}

std::size_t RecentCalls::read(std::span<Call, kKept> calls) const noexcept {
  const std::uint64_t last = last_ticket_.load(std::memory_order_relaxed);
  std::size_t count = 0;
  for (std::uint64_t ticket = last; ticket > 0 && ticket + kKept > last; --ticket) {
    const Slot& slot = slots_[ticket % kKept];
    if (slot.ticket.load(std::memory_order_acquire) != ticket) continue;
    Call& call = calls[count];
    call.operation = slot.operation.load(std::memory_order_relaxed);
    std::array<std::uint64_t, 3> letters{};
    for (std::size_t i = 0; i < letters.size(); ++i) {
      letters[i] = slot.group[i].load(std::memory_order_relaxed);
    }
    std::memcpy(call.group.data(), letters.data(), sizeof(letters));
    call.sequence.reset();
    if (slot.has_sequence.load(std::memory_order_relaxed)) {
      call.sequence = slot.sequence.load(std::memory_order_relaxed);
    }
    call.ended = slot.ended_ticket.load(std::memory_order_relaxed) == ticket;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (slot.ticket.load(std::memory_order_relaxed) == ticket) ++count;
  }
  return count;
}

}  // namespace lockstep
