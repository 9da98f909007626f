#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::inline internal {

/// Decides which buckets may be exchanged during a backward pass: in order, which is the same on
/// every rank, each once its gradients are complete and the buckets before it have been taken.
/// Pure: it has only numbers.
class ExchangeSchedule {
 public:
  /// Bucket of a gradient that is not exchanged.
  static constexpr std::size_t kNoBucket = SIZE_MAX;

  ExchangeSchedule() = default;
  /// bucket_of[i]: the bucket of gradient i.
  ExchangeSchedule(std::vector<std::size_t> bucket_of, std::size_t bucket_count);

  /// A backward pass begins. expected[i]: number of times that autograd adds to gradient i until it
  /// is complete; 0: it is complete from the start.
  void begin(const std::vector<int>& expected);

  /// What an addition to a gradient means.
  enum class Arrival : std::uint8_t {
    kPart,      ///< further additions are expected
    kComplete,  ///< it is complete
    kMore,      ///< it was complete, but may still be replaced
    kLate,      ///< it was complete, and its bucket has been taken
    kNotExchanged,
  };
  /// Autograd has added to a gradient.
  Arrival arrive(std::size_t gradient);

  /// The pass is over: marks incomplete gradients as complete and returns them.
  std::vector<std::size_t> complete_all();

  /// The next bucket to exchange, if it is complete. Returns each once per pass.
  std::optional<std::size_t> take_next();

 private:
  std::vector<std::size_t> bucket_of_;
  std::vector<std::size_t> sizes_;    // of each bucket, in gradients
  std::vector<int> missing_;          // of each gradient, in additions
  std::vector<std::size_t> waiting_;  // of each bucket: its incomplete gradients
  std::size_t next_ = 0;
};

}  // namespace lockstep::inline internal
