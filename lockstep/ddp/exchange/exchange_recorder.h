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

/// Records each exchange of gradients: as ranges for LibTorch's profiler, named "lockstep::fill
/// bucket 3 (1.2 MB)", which cost almost nothing while it is off; with `measure` also as times.
/// Without it no clock is read.
/// Threads: one at a time.
class ExchangeRecorder {
 public:
  explicit ExchangeRecorder(bool measure) : measure_(measure) {}

  /// Sets what is exchanged, in order.
  void plan(std::vector<BucketLayout> layout);
  const std::vector<BucketLayout>& layout() const { return layout_; }

  void begin_backward();

  /// A range of the profiler while it lives; at its end it writes the time to `end`, unless null.
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

  /// Around each call of the exchange with this number.
  Range filling(std::size_t exchange);
  Range starting(std::size_t exchange);
  Range finishing(std::size_t exchange);

  /// Call it from time to time during backward: records which started exchanges are complete.
  void look(const std::vector<std::unique_ptr<GradientExchange>>& exchanges);

  /// Autograd has ended.
  void end_of_autograd();
  /// All exchanges are finished.
  void end_of_exchange();

  /// The last backward pass that ended; empty without `measure`.
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
  std::size_t complete_ = 0;  // of those, noticed as complete
  std::optional<ExchangeReport> report_;
};

}  // namespace lockstep::inline internal
