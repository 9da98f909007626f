#pragma once

#include <optional>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace lockstep {

/// The dtype in which forward computes, where Autocast allows it.
enum class Precision {
  kFloat32,   ///< No autocast: everything in the dtype of parameters and inputs.
  kFloat16,   ///< float16, with a GradScaler for the loss.
  kBFloat16,  ///< bfloat16.
};

/// Names and defaults are those of torch.autocast.
struct AutocastOptions {
  c10::DeviceType device_type = c10::DeviceType::CPU;  ///< Or CUDA.
  /// BFloat16 or Half. Unset: the one in force, at first BFloat16 on the CPU and Half on CUDA.
  std::optional<c10::ScalarType> dtype = std::nullopt;
  /// False within another guard: what follows is calculated as it is written.
  bool enabled = true;
  /// Keep parameters that were cast until the outermost guard ends. Unset: as it is, at first true.
  std::optional<bool> cache_enabled = std::nullopt;
};

/// Mixed precision: while it lives, matrix products and convolutions run in `dtype`, operators that
/// need the range in float32, as LibTorch's lists say; parameters stay as they are. Guards nest.
///
///   at::Tensor loss;
///   {
///     const lockstep::Autocast autocast;             // bfloat16 on the CPU
///     loss = at::mse_loss(model(inputs), targets);
///   }
///   loss.backward();                                 // outside; in the dtypes of forward
///
/// Threads: holds for the thread that made it, which must end it too.
/// Errors: UsageError for another device or dtype.
class Autocast {
 public:
  explicit Autocast(const AutocastOptions& options = {});
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const c10::DeviceType device_type_;
  bool enabled_before_;
  c10::ScalarType dtype_before_;
  bool cache_enabled_before_;
};

}  // namespace lockstep
