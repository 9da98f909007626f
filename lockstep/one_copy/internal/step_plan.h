#pragma once

#include <cstdint>
#include <span>

/// How a rank interprets what ranks write about a step (StepLog), as pure functions: all survivors
/// make the same decisions.
namespace lockstep::inline internal {

/// How far a shard of a step is updated, in one word, so that a rank killed at any instruction
/// leaves a valid one.
struct SharePosition {
  enum class Stage : std::uint8_t {
    kUnprepared,  ///< Its first values may be missing; the rank that updates it writes them again.
    kSettled,     ///< `chunks` are updated, the others unchanged.
    kTorn,        ///< The same, but the next may be partly updated: its old values are kept.
    kComplete,
  };

  std::uint64_t step = 0;
  Stage stage = Stage::kUnprepared;
  std::uint32_t chunks = 0;

  static constexpr std::uint32_t kMostChunks = (std::uint32_t{1} << 26) - 1;

  std::uint64_t word() const {
    return step << 28 | std::uint64_t{chunks} << 2 | static_cast<std::uint64_t>(stage);
  }
  static SharePosition of(std::uint64_t word) {
    return {.step = word >> 28,
            .stage = static_cast<Stage>(word & 3),
            .chunks = static_cast<std::uint32_t>(word >> 2) & kMostChunks};
  }
  /// A word of an earlier step means that this one has not begun.
  static SharePosition in_step(std::uint64_t step, std::uint64_t word) {
    const SharePosition written = of(word);
    return written.step == step ? written : SharePosition{.step = step};
  }
  bool operator==(const SharePosition&) const = default;
};

/// Whether a step happens. The first rank that writes it decides for all.
enum class Decision : std::uint8_t { kOpen, kUpdate, kVoid };

/// What a rank has written about a step.
struct RankInStep {
  bool is_present = true;        ///< If false, it ended or left: what it wrote is final.
  bool has_handed_over = false;  ///< Its gradients, and everything else that peers need of it.
};

/// Whether the step can happen; kOpen: a live rank has not handed over yet.
Decision decide_step(std::span<const RankInStep> ranks);

/// What a rank should do about a shard of a step that happens.
enum class ShareTask : std::uint8_t { kNothing, kWait, kTakeOver };
ShareTask plan_share(const SharePosition& position, bool runner_is_present);

}  // namespace lockstep::inline internal
