#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

/// Progress of a training run, over all ranks and all runs of the job.
struct TrainingTime {
  std::int64_t epochs = 0;   ///< complete epochs
  std::int64_t batches = 0;  ///< optimizer steps
  std::int64_t samples = 0;
  double seconds = 0;
};

/// The length of a training run, in the notation of MosaicML Composer's Time: "10ep" epochs,
/// "100ba" batches (optimizer steps), "5000sp" samples, "90sec" seconds. A default-constructed one
/// is empty.
class Duration {
 public:
  Duration() = default;
  /// Parses this notation; empty text gives an empty duration.
  /// `what`: the option's name for error messages, such as "max_duration".
  /// Errors: UsageError for other text, and for 0.
  static Duration parse(const std::string& text, const std::string& what);

  explicit operator bool() const { return amount_ > 0; }
  /// Whether a training run has this length; false if empty.
  bool reached(const TrainingTime& time) const { return *this && of(time) >= amount_; }
  /// Whether a multiple of this length lies in the interval (before, now]; false if empty.
  bool due(const TrainingTime& before, const TrainingTime& now) const;

  /// This length in epochs of so many batches and samples, rounded up; nullopt for seconds.
  std::optional<std::int64_t> epochs(std::int64_t batches, std::int64_t samples) const;

 private:
  enum class Unit { kEpochs, kBatches, kSamples, kSeconds };

  std::int64_t of(const TrainingTime& time) const;

  Unit unit_ = Unit::kEpochs;
  std::int64_t amount_ = 0;
};

}  // namespace lockstep
