#pragma once

#include <optional>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace lockstep {

/// The dtype in which forward computes, where Autocast allows it.
enum class Precision {
  kFloat32,   ///< No autocast: everything in the dtypes of parameters and inputs.
  kFloat16,   ///< float16, with a GradScaler for the loss.
  kBFloat16,  ///< bfloat16.
};

/// Options of Autocast; names and defaults are those of torch.autocast.
struct AutocastOptions {
  c10::DeviceType device_type = c10::DeviceType::CPU;  ///< CPU or CUDA.
  /// BFloat16 or Half. Unset: the current one, at first BFloat16 on the CPU and Half on CUDA.
  std::optional<c10::ScalarType> dtype = std::nullopt;
  /// False: turns autocast off within another guard.
  bool enabled = true;
  /// Keep casts of parameters until the outermost guard ends. Unset: as before, at first true.
  std::optional<bool> cache_enabled = std::nullopt;
};

/// Mixed precision during its life: matrix products and convolutions run in `dtype`, operators that
/// need the range in float32, by LibTorch's lists. Parameters keep their dtype. Guards nest.
///
/// ```cpp
/// at::Tensor loss;
/// {
///   const lockstep::Autocast autocast;  // bfloat16 on the CPU
///   loss = at::mse_loss(model(inputs), targets);
/// }
/// loss.backward();  // outside of the guard; uses the dtypes of forward
/// ```
///
/// Threads: affects the thread that creates it, which must also destroy it.
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
