#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/exchange/gradient_exchange.h"

namespace lockstep::inline internal {

/// The gradient of one large parameter in a group that shares memory. If autograd has written it
/// into that memory (see GradientMemory) and it has one owner (see has_one_owner), it is averaged
/// in place and stays .grad. Else it is averaged into a new tensor in that memory, chunk by chunk,
/// and .grad becomes that; only the parts that peers reduce are copied first.
class LargeGradient final : public GradientExchange {
 public:
  /// Smallest size for which a collective of its own costs less than the copy that it saves.
  static constexpr std::int64_t kLeastBytes = 256 * 1024;

  /// Whether a parameter's gradient is exchanged so: not if it is exchanged in another dtype or by
  /// a hook, because it must then be copied.
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
  at::Tensor flag_;  ///< one element: fraction of ranks that have a gradient
  at::Tensor input_;
  at::Tensor output_;
  std::vector<Work> works_;
};

}  // namespace lockstep::inline internal
