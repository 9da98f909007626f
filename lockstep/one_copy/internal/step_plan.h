#pragma once

#include <cstdint>
#include <span>

/// What a rank makes of the words that ranks write about a step (StepLog), as pure functions: all
/// survivors of a rank decide alike.
namespace lockstep::inline internal {

/// How far a share of a step is updated. In one word, so that a rank that is killed at any
/// instruction leaves one that can be read.
struct SharePosition {
  enum class Stage : std::uint8_t {
    kUnprepared,  ///< Its first values may be missing, which whoever runs the share writes again.
    kSettled,     ///< `chunks` are updated, the others untouched.
    kTorn,        ///< As that, but the next may be half updated: its old values are kept.
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
  /// A word of an earlier step says that this one has not begun.
  static SharePosition in_step(std::uint64_t step, std::uint64_t word) {
    const SharePosition written = of(word);
    return written.step == step ? written : SharePosition{.step = step};
  }
  bool operator==(const SharePosition&) const = default;
};

/// Whether a step happens. The first rank to write it decides for all.
enum class Decision : std::uint8_t { kOpen, kUpdate, kVoid };

struct RankInStep {
  bool is_present = true;  ///< Else the rank ended or left: what it wrote does not change any more.
  bool has_handed_over = false;  ///< Its gradients, and all else that peers need of it.
};

/// Whether the step can happen; kOpen: a rank that lives may hand over yet.
Decision decide_step(std::span<const RankInStep> ranks);

/// What a rank should do about a share of a step that happens.
enum class ShareTask : std::uint8_t { kNothing, kWait, kTakeOver };
ShareTask plan_share(const SharePosition& position, bool runner_is_present);

}  // namespace lockstep::inline internal
