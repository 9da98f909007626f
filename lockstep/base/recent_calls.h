#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace lockstep {

/// The last collectives that this process started, for the report of a crash.
/// Threads: any; nobody ever waits, and a signal handler may read.
class RecentCalls {
 public:
  static constexpr std::size_t kKept = 16;

  struct Call {
    const char* operation = "";
    std::array<char, 24> group{};  ///< ends with 0; a longer name is cut
    std::optional<std::uint64_t> sequence{};
    bool ended = false;
  };

  constexpr RecentCalls() = default;
  RecentCalls(const RecentCalls&) = delete;
  RecentCalls& operator=(const RecentCalls&) = delete;

  /// Returns a ticket for end(), never 0. `operation` must stay where it is for good.
  std::uint64_t start(const char* operation, std::string_view group,
                      std::optional<std::uint64_t> sequence) noexcept;

  /// The call has been waited for. 0 is no call.
  void end(std::uint64_t ticket) noexcept;

  /// The last ones, the newest first; returns how many. One that another thread is just adding is
  /// left out.
  std::size_t read(std::span<Call, kKept> calls) const noexcept;

 private:
  // Ticket 0: empty, or being written.
  struct Slot {
    std::atomic<std::uint64_t> ticket{0};
    std::atomic<std::uint64_t> ended_ticket{0};
    std::atomic<const char*> operation{nullptr};
    std::array<std::atomic<std::uint64_t>, 3> group{};
    std::atomic<std::uint64_t> sequence{0};
    std::atomic<bool> has_sequence{false};
  };

  std::atomic<std::uint64_t> last_ticket_{0};
  std::array<Slot, kKept> slots_{};
};

/// Those of this process.
RecentCalls& recent_calls() noexcept;

}  // namespace lockstep
