#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/exchange/gradient_exchange.h"

namespace lockstep::inline internal {

/// The gradient of one large parameter in a group that shares memory. Where autograd has written it
/// into that memory (see GradientMemory) and nothing else refers to it (see has_one_owner), it is
/// averaged where it lies and stays .grad. Else it is averaged into a new tensor in that memory,
/// chunk by chunk, of which only the parts that peers reduce are copied first, and .grad becomes
/// that.
class LargeGradient final : public GradientExchange {
 public:
  /// The smallest for which a collective of its own costs less than the copy that it saves.
  static constexpr std::int64_t kLeastBytes = 256 * 1024;

  /// Whether a gradient of the parameter is one in this group: not where it travels in another
  /// dtype or by a hook, for then it has to be copied.
  static bool suits(const ProcessGroup& group, const ExchangeOptions& options,
                    const at::Tensor& parameter);

  LargeGradient(const ProcessGroup& group, const ExchangeOptions& options, std::size_t index,
                at::Tensor parameter);

  void fill(std::size_t position, GradientScale& scale, const at::Tensor& arrived) override;
  void start_average(GradientScale& scale) override;
  bool is_averaged() const override;
  void finish() override;

 private:
  at::Tensor allocate() const;
  void exchange(const at::Tensor& output, const at::Tensor& input, double scale,
                const at::Tensor& squares);

  ProcessGroup group_;
  std::string name_;
  at::Tensor parameter_;
  bool as_view_;
  std::int64_t chunk_elements_;
  at::Tensor sum_of_squares_;
  at::Tensor flag_;  ///< one element: the fraction of ranks that have a gradient
  at::Tensor input_;
  at::Tensor output_;
  std::vector<Work> works_;
};

}  // namespace lockstep::inline internal
