#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "lockstep/parameter_server/internal/shard_plan.h"
#include "lockstep/parameter_server/training.h"

namespace lockstep::parameter_server::inline internal {

/// A trainer's gradients of a step for one table on one server.
struct RowGradients {
  at::Tensor rows;       ///< [n], int64: rows of this server; may repeat
  at::Tensor gradients;  ///< [n, columns], float32
};
/// A trainer's gradients of a step for one server.
struct Gradients {
  at::Tensor dense;                  ///< [elements of the slice]
  std::vector<RowGradients> tables;  ///< by table
};

/// A server's shard of the parameters, its rows of the tables, and their optimizers.
/// Threads: one at a time.
class Shard {
 public:
  /// Errors: as check_parts.
  Shard(const Parts& parts, int server, int servers);

  /// Updates made so far.
  std::int64_t updates() const { return updates_; }
  /// [elements of the slice]; updates write to this memory.
  const at::Tensor& values() const { return values_; }
  /// Copies rows of this server.
  /// Errors: as check_rows.
  at::Tensor rows(std::size_t table, const at::Tensor& rows) const;

  /// Errors: UsageError for gradients that do not fit the shard.
  void check(const Gradients& gradients) const;
  /// Makes one update with the mean of gradients that fit, summed in their order; overwrites the
  /// first.
  void update(std::vector<Gradients> gradients);

  /// Writes a snapshot (save_snapshot) with `clock`.
  void save(const std::filesystem::path& path, std::int64_t clock) const;
  /// Loads a snapshot of save(), and returns its clock.
  /// Errors: as load_snapshot; UsageError for another shard's.
  std::int64_t load(const std::filesystem::path& path);

 private:
  void check_rows(std::size_t table, const at::Tensor& rows) const;

  const int server_;
  const int servers_;
  std::vector<std::string> names_;  ///< of the tables
  at::Tensor values_;
  std::vector<at::Tensor> tables_;                            ///< [rows of this server, columns]
  std::unique_ptr<torch::optim::Optimizer> optimizer_;        ///< null without parameters
  std::unique_ptr<torch::optim::Optimizer> table_optimizer_;  ///< null without tables
  std::int64_t updates_ = 0;
};

/// Errors: UsageError for invalid parts.
void check_parts(const Parts& parts);

}  // namespace lockstep::parameter_server::inline internal
