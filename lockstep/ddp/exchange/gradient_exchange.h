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

/// What is done in the pass that averages, beside averaging.
struct ExchangeOptions {
  /// Gradients of float32 parameters travel in this dtype; unset: as they are.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// Complex ones too as they are: bfloat16 has no complex numbers.
  bool converts(const at::Tensor& parameter) const {
    return dtype && parameter.scalar_type() == at::kFloat;
  }
  /// As in DistributedDataParallelOptions.
  bool gradient_as_bucket_view = true;
  std::shared_ptr<CommHook> comm_hook = {};
  /// Of each message: tells the gradients of one model from another's.
  std::string name = {};
  /// One float64 on the group's device. finish() has added to it the squares of some of the
  /// averaged gradients: over all ranks, each once. Undefined: they are not asked for.
  at::Tensor sum_of_squares = {};
};

/// The gradients of some parameters, averaged over all ranks together.
/// Threads: one at a time.
class GradientExchange {
 public:
  explicit GradientExchange(std::vector<std::size_t> indices) : indices_(std::move(indices)) {}
  virtual ~GradientExchange() = default;
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  /// Of the parameters, as the caller numbers them.
  const std::vector<std::size_t>& indices() const { return indices_; }

  /// Takes the gradient of the parameter at this position of indices(), or zeros when it has none;
  /// zeros also in place of a sparse one where the exchange is that of strided ones, of which it
  /// exchanges only that there is one. Again, in place of what it took, where the gradient has
  /// changed since. `arrived`: as in has_one_owner.
  virtual void fill(std::size_t position, GradientScale& scale, const at::Tensor& arrived) = 0;

  /// Once all are there. Waits for no gradient of a peer.
  virtual void start_average(GradientScale& scale) = 0;

  /// After start_average: whether finish() is known not to wait. Where no thread makes the exchange
  /// go on, asking does.
  virtual bool is_averaged() const { return false; }

  /// Waits for the average and makes it the gradient of each parameter that any rank has one for,
  /// unless this rank has one of another layout.
  virtual void finish() = 0;

  /// From now on the gradient at this position is exchanged elsewhere.
  virtual void leave_out(std::size_t) {}

 private:
  std::vector<std::size_t> indices_;
};

}  // namespace lockstep::inline internal
