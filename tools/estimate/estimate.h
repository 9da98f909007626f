#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::inline internal {

enum class EstimatedOptimizer { kSgd, kMomentum, kAdam };

/// A training whose needs are estimated.
struct EstimateOptions {
  double parameters = 0;
  int nproc_per_node = 2;
  int nnodes = 1;
  EstimatedOptimizer optimizer = EstimatedOptimizer::kAdam;
  /// Forward calculates in 16 bits, as Autocast does.
  bool mixed_precision = false;
  bool shard_optimizer = false;  ///< ShardedOptimizer
  bool ema = false;              ///< ExponentialMovingAverage
  /// Snapshots are written while the training goes on.
  bool asynchronous_snapshots = false;
};

/// A part of the memory of one rank.
struct EstimatedPart {
  std::string name;
  double bytes = 0;
};

/// What a training takes, activations left out: they depend on the batch.
struct Estimate {
  std::vector<EstimatedPart> memory = {};  ///< of one rank
  double rank_bytes = 0;                   ///< their sum
  double node_bytes = 0;
  double snapshot_bytes = 0;  ///< on disk
  double gradient_bytes = 0;  ///< all-reduced in a step
  /// Sent, and received, by one machine in a step; 0 on one machine.
  double network_bytes = 0;
};

/// Pure. Parameters, gradients and states are float32, as Lockstep keeps them. Machines exchange by
/// rings (Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms", 2009): each sends
/// 2 (n - 1) / n times the gradients.
Estimate estimate(const EstimateOptions& options);

/// For people.
std::string describe(const Estimate& estimate, const EstimateOptions& options);
std::string to_json(const Estimate& estimate, const EstimateOptions& options);

/// The parameters that `lockstep-snapshot show --json` tells of weights or of a snapshot's model:
/// buffers are counted, too. Errors: UsageError for what has none.
double count_parameters(const std::string& shown_json, const std::string& path);

/// 124000000 for "124M"; K, M and B (or G) are thousands. Errors: UsageError.
double parse_parameter_count(const std::string& text);

}  // namespace lockstep::inline internal
