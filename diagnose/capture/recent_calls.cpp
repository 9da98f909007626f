#include "diagnose/capture/recent_calls.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace lockstep::inline internal {
namespace {

// Ready before any constructor runs and never destroyed: a crash may come at any time.
constinit RecentCalls calls_of_program;
constinit std::atomic<RecentCalls*> calls_of_process{&calls_of_program};

constinit thread_local std::string_view calls_are_about;

// The words that hold anything.
std::size_t words_of(std::string_view text, std::size_t most) {
  return std::min(text.size() / sizeof(std::uint64_t) + 1, most);
}

template <class Words>
void store_text(Words& words, std::string_view text) {
  const std::size_t count = words_of(text, words.size());
  text = text.substr(0, count * sizeof(std::uint64_t) - 1);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t letters = 0;
    const std::string_view part = text.substr(std::min(i * sizeof letters, text.size()));
    part.copy(reinterpret_cast<char*>(&letters), sizeof letters);
    words[i].store(letters, std::memory_order_relaxed);
  }
}

template <class Words, std::size_t bytes>
void load_text(const Words& words, std::array<char, bytes>& text) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::uint64_t letters = words[i].load(std::memory_order_relaxed);
    std::memcpy(text.data() + i * sizeof letters, &letters, sizeof letters);
  }
  text.back() = 0;
}

// Of the machine, for another process to compare with its own.
std::int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

RecentCalls& recent_calls() noexcept {
  return *calls_of_process.load(std::memory_order_acquire);
}

void keep_recent_calls_in(RecentCalls& memory) noexcept {
  calls_of_process.store(&memory, std::memory_order_release);
}

CallsAbout::CallsAbout(std::string_view text) noexcept
    : before_(std::exchange(calls_are_about, text)) {}

CallsAbout::~CallsAbout() {
  calls_are_about = before_;
}

RecentCalls* RecentCalls::at(void* memory, std::size_t bytes) noexcept {
  auto* const calls = static_cast<RecentCalls*>(memory);
  return bytes >= sizeof(RecentCalls) && calls->version_ == kVersion ? calls : nullptr;
}

std::uint64_t RecentCalls::start(std::string_view operation, std::string_view group,
                                 std::optional<std::uint64_t> sequence) noexcept {
  const std::uint64_t ticket = last_ticket_.fetch_add(1, std::memory_order_relaxed) + 1;
  Slot& slot = slots_[ticket % kKept];
  // Of two threads that are so far apart that they want one slot the first has it: the other's call
  // is left out, rather than mixed with it.
  std::uint64_t before = slot.ticket.load(std::memory_order_relaxed);
  if (before > ticket ||
      !slot.ticket.compare_exchange_strong(before, kBeingWritten, std::memory_order_acquire)) {
    return ticket;
  }
  std::atomic_thread_fence(std::memory_order_release);
  store_text(slot.operation, operation);
  store_text(slot.group, group);
  store_text(slot.about, calls_are_about);
  slot.sequence.store(sequence.value_or(0), std::memory_order_relaxed);
  slot.has_sequence.store(sequence.has_value(), std::memory_order_relaxed);
  slot.started_ns.store(now_ns(), std::memory_order_relaxed);
  slot.ticket.store(ticket, std::memory_order_release);
  return ticket;
}

void RecentCalls::wait(std::uint64_t ticket) noexcept {
  Slot& slot = slots_[ticket % kKept];
  if (slot.ticket.load(std::memory_order_relaxed) == ticket)
    slot.waited_ticket.store(ticket, std::memory_order_relaxed);
}

void RecentCalls::end(std::uint64_t ticket) noexcept {
  Slot& slot = slots_[ticket % kKept];
  if (slot.ticket.load(std::memory_order_relaxed) == ticket)
    slot.ended_ticket.store(ticket, std::memory_order_relaxed);
}

std::size_t RecentCalls::read(std::span<Call> calls) const noexcept {
  const std::uint64_t last = last_ticket_.load(std::memory_order_relaxed);
  std::size_t count = 0;
  for (std::uint64_t ticket = last; ticket > 0 && ticket + kKept > last && count < calls.size();
       --ticket) {
    const Slot& slot = slots_[ticket % kKept];
    if (slot.ticket.load(std::memory_order_acquire) != ticket) continue;
    Call& call = calls[count];
    load_text(slot.operation, call.operation);
    load_text(slot.group, call.group);
    load_text(slot.about, call.about);
    call.sequence.reset();
    if (slot.has_sequence.load(std::memory_order_relaxed)) {
      call.sequence = slot.sequence.load(std::memory_order_relaxed);
    }
    call.started_ns = slot.started_ns.load(std::memory_order_relaxed);
    call.waited = slot.waited_ticket.load(std::memory_order_relaxed) == ticket;
    call.ended = slot.ended_ticket.load(std::memory_order_relaxed) == ticket;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (slot.ticket.load(std::memory_order_relaxed) == ticket) ++count;
  }
  return count;
}

}  // namespace lockstep::inline internal
