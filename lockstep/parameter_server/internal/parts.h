#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/rpc/distributed_optimizer.h"

namespace lockstep::parameter_server {

/// An embedding of which no process but the servers holds more than the rows that it asks for.
struct Table {
  std::string name;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  /// Rows begin with normally distributed numbers of this standard deviation, which follow from
  /// `seed` alone, however many servers there are.
  double deviation = 1;
  std::uint64_t seed = 0;
};

/// What servers hold and update.
struct Parts {
  /// Of a model that every trainer has whole, of one dtype and on the CPU. The values that servers
  /// begin with are those of their own process: seed the generator alike.
  std::vector<at::Tensor> parameters = {};
  /// Float.
  std::vector<Table> tables = {};
  /// Makes the optimizer of a server's share of `parameters`, which is one tensor: elementwise
  /// optimizers (SGD, Adam, AdamW, RMSprop, Adagrad) then do what they do with all.
  rpc::MakeOptimizer optimizer = {};
  /// And that of its tables: one that takes sparse gradients (SGD without momentum, Adagrad).
  rpc::MakeOptimizer table_optimizer = {};
};

/// Errors: UsageError saying what cannot be.
void check_parts(const Parts& parts);

}  // namespace lockstep::parameter_server
