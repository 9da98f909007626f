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

/// Names and values, in the order in which they were first logged.
using Metrics = std::vector<std::pair<std::string, double>>;

/// The value of that name; nothing where there is none.
const double* find_metric(const Metrics& metrics, std::string_view name);

/// Sets those of `newer`, adding what is new.
void set_metrics(Metrics& metrics, const Metrics& newer);

/// "  train_loss 0.1234  samples_per_second 28882", for people.
std::string describe(const Metrics& metrics);

/// Collects what steps log, and makes means over steps and ranks of it. Sums are exact: a mean has
/// the same bits however what is logged is divided among ranks. Values on a CUDA device are kept,
/// and not waited for before means are asked for. Threads: the training thread.
class MetricMeans {
 public:
  /// A number, or a tensor of one element, which counts `weight` times.
  void log(std::string_view name, const at::Tensor& value, double weight);
  void log(std::string_view name, double value, double weight);

  bool empty() const { return collected_.empty(); }

  /// Collective: the means over all that was collected on all ranks, which is forgotten.
  /// The numbers `agreed` become rank 0's. Names are in rank 0's order. `has_new_ranks`, the same
  /// on all ranks: some may have begun later than others, and lack names; the mean is over the
  /// ranks that have it. Errors: UsageError where ranks have logged other names or a value is no
  /// single number; as Work::wait; after any, nothing is forgotten, and the means may be taken
  /// again.
  Metrics take_means(const ProcessGroup& group, std::span<double> agreed = {},
                     bool has_new_ranks = false);

 private:
  struct Collected {
    std::string name;
    std::vector<std::pair<at::Tensor, double>> values;
    std::vector<std::int64_t> sums = {};  ///< exact, of numbers times weights, and of weights
  };
  static void add(std::vector<std::int64_t>& sums, double value, double weight);
  Collected& of(std::string_view name);
  std::string names() const;
  void agree_on_names(const ProcessGroup& group, bool has_new_ranks);

  std::vector<Collected> collected_;
};

}  // namespace lockstep
