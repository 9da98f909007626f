#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/ddp/comm_hook.h"
#include "lockstep/ddp/exchange/gradient_scale.h"

namespace lockstep::inline internal {

/// Options of the exchange of gradients.
struct ExchangeOptions {
  /// Exchange gradients of float32 parameters in this dtype. Unset: in their own.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// Whether a parameter's gradients are converted. Complex ones are not: bfloat16 has no complex
  /// numbers.
  bool converts(const at::Tensor& parameter) const {
    return dtype && parameter.scalar_type() == at::kFloat;
  }
  /// See DistributedDataParallelOptions.
  bool gradient_as_bucket_view = true;
  std::shared_ptr<CommHook> comm_hook = {};
  /// Name of each message; distinguishes the gradients of models.
  std::string name = {};
  /// One float64 on the group's device. finish() adds to it the squares of some of the averaged
  /// gradients; over all ranks each once. Undefined: not needed.
  at::Tensor sum_of_squares = {};
};

/// Averages the gradients of some parameters together over all ranks.
/// Threads: one at a time.
class GradientExchange {
 public:
  explicit GradientExchange(std::vector<std::size_t> indices) : indices_(std::move(indices)) {}
  virtual ~GradientExchange() = default;
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  /// Indices of the parameters, in the caller's numbering.
  const std::vector<std::size_t>& indices() const { return indices_; }

  /// Reads the gradient of the parameter at this position of indices(), or zeros if it has none. An
  /// exchange of strided gradients reads zeros for a sparse one, and exchanges only that there is
  /// one. Call it again if the gradient has changed since. `arrived`: see has_one_owner.
  virtual void fill(std::size_t position, GradientScale& scale, const at::Tensor& arrived) = 0;

  /// Call it when all gradients are filled. Does not wait for peers.
  virtual void start_average(GradientScale& scale) = 0;

  /// After start_average: whether finish() will not wait. If no thread advances the exchange, this
  /// call does.
  virtual bool is_averaged() const { return false; }

  /// Waits for the average and makes it the gradient of each parameter that has one on any rank,
  /// unless this rank has one of another layout.
  virtual void finish() = 0;

  /// From now on the gradient at this position is exchanged elsewhere.
  virtual void leave_out(std::size_t) {}

 private:
  std::vector<std::size_t> indices_;
};

}  // namespace lockstep::inline internal
