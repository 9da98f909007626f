#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace lockstep::inline internal {

/// The last collectives that a process started, and its training step, for reports of a crash or a
/// hang. It contains no pointers, so another process can read it in shared memory.
/// Threads: any, without locks; a signal handler may read.
class RecentCalls {
 public:
  static constexpr std::size_t kKept = 64;

  /// A collective. Texts end with 0; longer ones are truncated.
  struct Call {
    std::array<char, 40> operation{};
    std::array<char, 24> group{};
    std::array<char, 96> about{};  ///< its purpose: "bucket 2: fc.weight to fc.bias"
    std::optional<std::uint64_t> sequence{};
    std::int64_t started_ns = 0;  ///< by the machine's CLOCK_MONOTONIC
    bool waited = false;          ///< wait() was called
    bool ended = false;
  };

  constexpr RecentCalls() = default;
  RecentCalls(const RecentCalls&) = delete;
  RecentCalls& operator=(const RecentCalls&) = delete;

  /// The object that another process created in `memory`; null if it is of another version.
  static RecentCalls* at(void* memory, std::size_t bytes) noexcept;

  /// Adds a call; its `about` comes from CallsAbout. Returns a ticket for wait() and end(), never
  /// 0.
  std::uint64_t start(std::string_view operation, std::string_view group,
                      std::optional<std::uint64_t> sequence) noexcept;

  /// The process now waits for the call. Ticket 0: no effect.
  void wait(std::uint64_t ticket) noexcept;

  /// The wait for the call is over. Ticket 0: no effect.
  void end(std::uint64_t ticket) noexcept;

  /// The current training step; -1: unknown.
  void note_step(std::int64_t step) noexcept { step_.store(step, std::memory_order_relaxed); }
  std::int64_t step() const noexcept { return step_.load(std::memory_order_relaxed); }

  /// Number of times that another process has read this process's stacks; a futex.
  std::atomic<std::uint32_t>& looks() noexcept { return looks_; }

  /// Copies the last calls, newest first, as many as fit. Returns their number. Skips a call that
  /// another thread is adding.
  std::size_t read(std::span<Call> calls) const noexcept;

 private:
  template <std::size_t bytes>
  using Text = std::array<std::atomic<std::uint64_t>, bytes / sizeof(std::uint64_t)>;

  static constexpr std::uint64_t kBeingWritten = ~std::uint64_t{0};

  // Ticket 0: empty.
  struct Slot {
    std::atomic<std::uint64_t> ticket{0};
    std::atomic<std::uint64_t> waited_ticket{0};
    std::atomic<std::uint64_t> ended_ticket{0};
    Text<sizeof(Call::operation)> operation{};
    Text<sizeof(Call::group)> group{};
    Text<sizeof(Call::about)> about{};
    std::atomic<std::uint64_t> sequence{0};
    std::atomic<bool> has_sequence{false};
    std::atomic<std::int64_t> started_ns{0};
  };

  static constexpr std::uint64_t kVersion = 0x6c6b7374'00000001 + (sizeof(Slot) << 8);

  std::uint64_t version_ = kVersion;
  std::atomic<std::uint32_t> looks_{0};
  std::atomic<std::int64_t> step_{-1};
  std::atomic<std::uint64_t> last_ticket_{0};
  std::array<Slot, kKept> slots_{};
};

/// The calls of this process.
RecentCalls& recent_calls() noexcept;

/// Purpose of the calls that this thread starts while the guard lives.
/// Lifetime: the text must outlive the guard.
class CallsAbout {
 public:
  explicit CallsAbout(std::string_view text) noexcept;
  ~CallsAbout();
  CallsAbout(const CallsAbout&) = delete;
  CallsAbout& operator=(const CallsAbout&) = delete;

 private:
  std::string_view before_;
};

/// Records this process's calls in `memory` from now on.
/// Threads: before the first call.
void keep_recent_calls_in(RecentCalls& memory) noexcept;

}  // namespace lockstep::inline internal
