#include "lockstep/train/duration.h"

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"

namespace lockstep {

Duration Duration::parse(const std::string& text, const std::string& what) {
  Duration duration;
  if (text.empty()) return duration;
  const std::size_t end = text.find_first_not_of("0123456789");
  const std::string unit = end == std::string::npos ? "" : text.substr(end);
  const auto amount = parse_number<std::int64_t>(text.substr(0, end));
  const bool is_known = unit == "ep" || unit == "ba" || unit == "sp" || unit == "sec";
  if (!amount || *amount < 1 || !is_known) {
    throw UsageError(concat(what, " is '", text,
                            "'; give a number with ep (epochs), ba (batches: steps of the "
                            "optimizer), sp (samples) or sec (seconds), as in 10ep"));
  }
  duration.amount_ = *amount;
  duration.unit_ = unit == "ep"   ? Unit::kEpochs
                   : unit == "ba" ? Unit::kBatches
                   : unit == "sp" ? Unit::kSamples
                                  : Unit::kSeconds;
  return duration;
}

bool Duration::due(const TrainingTime& before, const TrainingTime& now) const {
  return *this && of(now) / amount_ > of(before) / amount_;
}

std::optional<std::int64_t> Duration::epochs(std::int64_t batches, std::int64_t samples) const {
  switch (unit_) {
    case Unit::kEpochs:
      return amount_;
    case Unit::kBatches:
      return (amount_ + batches - 1) / batches;
    case Unit::kSamples:
      return (amount_ + samples - 1) / samples;
    case Unit::kSeconds:
      break;
  }
  return std::nullopt;
}

std::int64_t Duration::of(const TrainingTime& time) const {
  switch (unit_) {
    case Unit::kEpochs:
      return time.epochs;
    case Unit::kBatches:
      return time.batches;
    case Unit::kSamples:
      return time.samples;
    case Unit::kSeconds:
      return static_cast<std::int64_t>(time.seconds);
  }
  return 0;
}

}  // namespace lockstep
