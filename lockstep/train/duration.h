#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

/// What a training run has done, on all ranks together.
struct TrainingTime {
  std::int64_t epochs = 0;   ///< that are complete
  std::int64_t batches = 0;  ///< steps of the optimizer
  std::int64_t samples = 0;
  double seconds = 0;
};

/// The length of a training run, as text in the form of MosaicML Composer's Time: "10ep" epochs,
/// "100ba" batches (steps of the optimizer), "5000sp" samples, "90sec" seconds. Nothing: no length.
class Duration {
 public:
  Duration() = default;
  /// `what`: for errors, as "max_duration". Errors: UsageError for other text, and for 0.
  static Duration parse(const std::string& text, const std::string& what);

  explicit operator bool() const { return amount_ > 0; }
  /// Whether a training run has this length.
  bool reached(const TrainingTime& time) const { return *this && of(time) >= amount_; }
  /// Whether a multiple of this length lies between two times of a training run.
  bool due(const TrainingTime& before, const TrainingTime& now) const;

  /// The number of epochs, rounded up, if an epoch has so many batches and samples; nothing for
  /// seconds.
  std::optional<std::int64_t> epochs(std::int64_t batches, std::int64_t samples) const;

 private:
  enum class Unit { kEpochs, kBatches, kSamples, kSeconds };

  std::int64_t of(const TrainingTime& time) const;

  Unit unit_ = Unit::kEpochs;
  std::int64_t amount_ = 0;
};

}  // namespace lockstep
