#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Names and values of metrics, in the order of their first log.
using Metrics = std::vector<std::pair<std::string, double>>;

/// The value of a metric; null without one of that name.
const double* find_metric(const Metrics& metrics, std::string_view name);

/// Overwrites metrics with those of `newer`, and appends new ones.
void set_metrics(Metrics& metrics, const Metrics& newer);

/// Text for people: "  train_loss 0.1234  samples_per_second 28882".
std::string describe(const Metrics& metrics);

/// Weighted means of logged values over steps and ranks. Sums are exact, so a mean has the same
/// bits however values are divided among ranks. Values on a CUDA device stay there until
/// take_means(), without synchronization.
/// Threads: call from the training thread.
class MetricMeans {
 public:
  /// Adds a value with a weight: a number, or a tensor of one element.
  /// Errors: UsageError for a tensor of another size.
  void log(std::string_view name, const at::Tensor& value, double weight);
  void log(std::string_view name, double value, double weight);

  /// Whether nothing was logged since the last take_means().
  bool empty() const { return collected_.empty(); }

  /// Computes the means over all ranks, and clears what was logged. Collective. Names are in rank
  /// 0's order.
  /// `agreed`: numbers that are overwritten with rank 0's.
  /// `has_new_ranks`: some ranks may lack names because they joined later; a mean is then over the
  /// ranks that logged it. Equal on all ranks.
  /// Errors: UsageError if ranks have logged different names or a value is not a single number; as
  /// Work::wait. After an error nothing is cleared; call it again.
  Metrics take_means(const ProcessGroup& group, std::span<double> agreed = {},
                     bool has_new_ranks = false);

 private:
  struct Collected {
    std::string name;
    std::vector<std::pair<at::Tensor, double>> values;
    std::vector<std::int64_t> sums = {};  ///< exact sums of value × weight, and of weights
  };
  static void add(std::vector<std::int64_t>& sums, double value, double weight);
  Collected& of(std::string_view name);
  std::string names() const;
  void agree_on_names(const ProcessGroup& group, bool has_new_ranks);

  std::vector<Collected> collected_;
};

}  // namespace lockstep
