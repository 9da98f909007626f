#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/record_function.h>

#include "lockstep/ddp/exchange/gradient_exchange.h"
#include "lockstep/ddp/exchange_report.h"

namespace lockstep::inline internal {

/// Notes what happens to each exchange of gradients: as ranges for LibTorch's profiler, named
/// "lockstep::fill bucket 3 (1.2 MB)", which cost nothing to speak of while none runs, and, where
/// it is to measure, as times. Without measuring no clock is read.
/// Threads: one at a time.
class ExchangeRecorder {
 public:
  explicit ExchangeRecorder(bool measure) : measure_(measure) {}

  /// Once it is known what is exchanged, in this order.
  void plan(std::vector<BucketLayout> layout);
  const std::vector<BucketLayout>& layout() const { return layout_; }

  void begin_backward();

  /// A range of the profiler, which ends with it; then the time is noted at `end`, unless null.
  class [[nodiscard]] Range {
   public:
    using Instant = std::chrono::steady_clock::time_point;
    Range(const std::string& name, Instant* end);
    ~Range();
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;

   private:
    std::optional<at::RecordFunction> range_;
    Instant* end_;
  };

  /// Around each call of the exchange of this number.
  Range filling(std::size_t exchange);
  Range starting(std::size_t exchange);
  Range finishing(std::size_t exchange);

  /// Now and then while backward runs: notes which of those that were started are complete.
  void look(const std::vector<std::unique_ptr<GradientExchange>>& exchanges);

  /// Autograd is done; then, all exchanges are finished.
  void end_of_autograd();
  void end_of_exchange();

  /// Of the last backward pass that ended; nothing where it is not to measure.
  const std::optional<ExchangeReport>& report() const { return report_; }

 private:
  using Instant = Range::Instant;
  static Instant now() { return std::chrono::steady_clock::now(); }

  struct Names {
    std::string fill;
    std::string start;
    std::string finish;
  };
  struct Times {
    Instant ready;
    Instant started;
    std::optional<Instant> complete;
    Instant wait_began;
    Instant wait_ended;
  };

  bool measure_;
  std::vector<BucketLayout> layout_;
  std::vector<Names> names_;
  std::vector<Times> times_;
  Instant began_;
  Instant autograd_ended_;
  std::size_t started_ = 0;   // exchanges, in their order
  std::size_t complete_ = 0;  // of those, seen to be
  std::optional<ExchangeReport> report_;
};

}  // namespace lockstep::inline internal
