#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace lockstep::inline internal {

/// The last collectives that a process started, and its step, for reports of a crash or a hang. It
/// holds no pointer, so that another process may read it in memory that both have mapped. Threads:
/// any; nobody ever waits, and a signal handler may read.
class RecentCalls {
 public:
  static constexpr std::size_t kKept = 64;

  /// Texts end with 0; longer ones are cut.
  struct Call {
    std::array<char, 40> operation{};
    std::array<char, 24> group{};
    std::array<char, 96> about{};  ///< what it is for: "bucket 2: fc.weight to fc.bias"
    std::optional<std::uint64_t> sequence{};
    std::int64_t started_ns = 0;  ///< by the machine's CLOCK_MONOTONIC
    bool waited = false;          ///< it is or has been waited for
    bool ended = false;
  };

  constexpr RecentCalls() = default;
  RecentCalls(const RecentCalls&) = delete;
  RecentCalls& operator=(const RecentCalls&) = delete;

  /// What lies there, as another process has made it; null where it is none of this version.
  static RecentCalls* at(void* memory, std::size_t bytes) noexcept;

  /// Returns a ticket for end(), never 0. What it is for is what CallsAbout says.
  std::uint64_t start(std::string_view operation, std::string_view group,
                      std::optional<std::uint64_t> sequence) noexcept;

  /// The call is waited for from now on. 0 is no call.
  void wait(std::uint64_t ticket) noexcept;

  /// It has been waited for. 0 is no call.
  void end(std::uint64_t ticket) noexcept;

  /// The step of a training that is being made; -1: not known.
  void note_step(std::int64_t step) noexcept { step_.store(step, std::memory_order_relaxed); }
  std::int64_t step() const noexcept { return step_.load(std::memory_order_relaxed); }

  /// How often another process has seen where the threads of this one are; to wait for by futexes.
  std::atomic<std::uint32_t>& looks() noexcept { return looks_; }

  /// The last ones, the newest first, as many as there is room for; returns how many. One that
  /// another thread is just adding is left out.
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

/// Those of this process.
RecentCalls& recent_calls() noexcept;

/// What the calls are for that this thread starts while the guard lives. The text must stay until
/// then.
class CallsAbout {
 public:
  explicit CallsAbout(std::string_view text) noexcept;
  ~CallsAbout();
  CallsAbout(const CallsAbout&) = delete;
  CallsAbout& operator=(const CallsAbout&) = delete;

 private:
  std::string_view before_;
};

/// Those of this process are kept here from now on. Threads: before the first call.
void keep_recent_calls_in(RecentCalls& memory) noexcept;

}  // namespace lockstep::inline internal
