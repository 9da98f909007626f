#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::inline internal {

enum class EstimatedOptimizer { kSgd, kMomentum, kAdam };

struct EstimateOptions {
  double parameters = 0;
  int nproc_per_node = 2;
  int nnodes = 1;
  EstimatedOptimizer optimizer = EstimatedOptimizer::kAdam;
  /// The forward pass computes in 16 bits (Autocast).
  bool mixed_precision = false;
  bool shard_optimizer = false;  ///< ShardedOptimizer
  bool ema = false;              ///< ExponentialMovingAverage
  /// Snapshots are written in the background.
  bool asynchronous_snapshots = false;
};

/// A part of the memory of one rank.
struct EstimatedPart {
  std::string name;
  double bytes = 0;
};

/// Without activations, which depend on the batch.
struct Estimate {
  std::vector<EstimatedPart> memory = {};  ///< of one rank
  double rank_bytes = 0;                   ///< their sum
  double node_bytes = 0;
  double snapshot_bytes = 0;  ///< on disk
  double gradient_bytes = 0;  ///< all-reduced in a step
  /// Sent, and received, by one machine in a step; 0 on one machine.
  double network_bytes = 0;
};

/// Pure. Parameters, gradients and optimizer states are float32. Machines all-reduce by rings
/// (Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms", 2009): each sends 2 (n - 1) / n
/// times the gradients.
Estimate estimate(const EstimateOptions& options);

/// A table.
std::string describe(const Estimate& estimate, const EstimateOptions& options);
std::string to_json(const Estimate& estimate, const EstimateOptions& options);

/// Counts parameters and buffers in the output of `lockstep-snapshot show --json`.
/// Errors: UsageError where it has none.
double count_parameters(const std::string& shown_json, const std::string& path);

/// 124000000 for "124M"; suffixes are k, M and B (or G). Errors: UsageError.
double parse_parameter_count(const std::string& text);

}  // namespace lockstep::inline internal
