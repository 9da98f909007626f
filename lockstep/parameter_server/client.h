#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/parameter_server/internal/parts.h"
#include "lockstep/rpc/rpc.h"

namespace lockstep::parameter_server {

/// A trainer's way to the servers of its rpc session. Threads: the training thread. Lifetime: the
/// session's.
class ParameterClient {
 public:
  /// `servers`: ranks of the session, in the servers' order. `patience`: how long it waits for
  /// other trainers' steps; unset: as long as for any call. Errors: as check_parts.
  ParameterClient(const Parts& parts, std::vector<int> servers, int trainer, int trainers,
                  std::optional<std::chrono::milliseconds> patience = std::nullopt);

  /// Among the trainers, from 0.
  int trainer() const { return trainer_; }
  int trainers() const { return trainers_; }

  /// The rows `ids` (Long, any shape) of a table, one for each: [ids' shape, columns]. What a
  /// backward pass gives them goes to the servers at the step's end; where gradients are off they
  /// are only read. Errors: UsageError for a table or an id that is none; as rpc::call.
  at::Tensor look_up(const std::string& table, const at::Tensor& ids);

  /// Hands in the parameters' gradients and those of rows looked up since the last time: returns
  /// when all servers have them. A parameter without a gradient counts as one of zeros.
  /// `step`: how many came before. Errors: as rpc::call.
  void push(std::int64_t step);
  /// Writes the servers' values into the parameters, once they are those that a trainer that has
  /// pushed `step` times may have. Errors: as rpc::call.
  void pull(std::int64_t step);
  /// Returns when all trainers are here; the values do not change any more. Errors: as rpc::call;
  /// others' steps may take as long as they do, while the servers live.
  void finish();

 private:
  struct LookedUp {
    std::size_t table = 0;
    at::Tensor ids;   ///< [n], each once
    at::Tensor rows;  ///< [n, columns], a leaf
  };
  std::size_t find(const std::string& table) const;
  at::Tensor fetch(std::size_t table, const at::Tensor& ids) const;
  void gather_gradients();

  const std::vector<at::Tensor> parameters_;
  const std::vector<Table> tables_;
  const std::vector<int> servers_;
  const int trainer_;
  const int trainers_;
  const std::optional<std::chrono::milliseconds> patience_;
  at::Tensor gradients_;  ///< of all parameters, end to end
  std::vector<LookedUp> looked_up_;
};

}  // namespace lockstep::parameter_server
