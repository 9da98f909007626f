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

/// Of one trainer's step, the part that is a server's.
struct RowGradients {
  at::Tensor rows;       ///< [n], Long: of this server's rows; may repeat
  at::Tensor gradients;  ///< [n, columns], Float
};
struct Gradients {
  at::Tensor dense;                  ///< [elements of the slice]
  std::vector<RowGradients> tables;  ///< one for each
};

/// A server's share of the parameters, its rows of the tables, and their optimizers.
/// Threads: one at a time.
class Shard {
 public:
  /// Errors: as check_parts.
  Shard(const Parts& parts, int server, int servers);

  std::int64_t updates() const { return updates_; }
  /// [elements of the slice]; the memory that updates write.
  const at::Tensor& values() const { return values_; }
  /// A copy of rows of this server. Errors: as check_rows.
  at::Tensor rows(std::size_t table, const at::Tensor& rows) const;

  /// Errors: UsageError for what does not fit the shard.
  void check(const Gradients& gradients) const;
  /// One update by the mean of gradients that fit, summed in their order; the first is overwritten.
  void update(std::vector<Gradients> gradients);

  /// A snapshot of all of it (save_snapshot). `clock`: kept with it.
  void save(const std::filesystem::path& path, std::int64_t clock) const;
  /// Takes what save() wrote, and returns the clock. Errors: as load_snapshot; UsageError for one
  /// of another shard.
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

/// Errors: UsageError saying what cannot be.
void check_parts(const Parts& parts);

}  // namespace lockstep::parameter_server::inline internal
