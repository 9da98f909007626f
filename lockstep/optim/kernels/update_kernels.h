#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/comm/kernels/instruction_set.h"

/// What update_range.cpp and the files compiled for one instruction set each agree on. Plain
/// structs and pointers, for the reason in lockstep/comm/kernels/kernel_table.h. All instruction
/// sets give the same bits, but for kAten… on the portable one, and each element's are those of the
/// whole, however ranges are cut.
namespace lockstep::inline internal {

/// Numbers of one step of an optimizer, all for gradients whose sign is that of a minimum.
struct SgdUpdate {
  double lr, momentum, dampening, weight_decay;
  bool nesterov, is_first_step;
  bool operator==(const SgdUpdate&) const = default;
};
/// States: exp_avg, exp_avg_sq, max_exp_avg_sq or none.
struct AdamUpdate {
  double lr, beta1, beta2, eps, weight_decay;
  bool is_decoupled;
  std::int64_t step;
  bool operator==(const AdamUpdate&) const = default;
};
struct AdagradUpdate {
  double lr, lr_decay, weight_decay, eps;
  std::int64_t step;
  bool operator==(const AdagradUpdate&) const = default;
};
struct NAdamUpdate {
  double lr, beta1, beta2, eps, weight_decay;
  bool is_decoupled;
  double mu, mu_next, mu_product;  ///< mu_product: with this step's
  std::int64_t step;
  bool operator==(const NAdamUpdate&) const = default;
};
struct RAdamUpdate {
  double lr, beta1, beta2, eps, weight_decay;
  bool is_decoupled;
  std::int64_t step;
  bool operator==(const RAdamUpdate&) const = default;
};
struct AdamaxUpdate {
  double lr, beta1, beta2, eps, weight_decay;
  std::int64_t step;
  bool operator==(const AdamaxUpdate&) const = default;
};
struct AdadeltaUpdate {
  double lr, rho, eps, weight_decay;
  bool operator==(const AdadeltaUpdate&) const = default;
};
/// States: square_avg, momentum_buffer or none, grad_avg or none.
struct RmspropUpdate {
  double lr, alpha, eps, weight_decay, momentum;
  bool operator==(const RmspropUpdate&) const = default;
};
struct LionUpdate {
  double lr, beta1, beta2, weight_decay;
  bool operator==(const LionUpdate&) const = default;
};
struct LambUpdate {
  double beta1, beta2, eps, weight_decay;
  std::int64_t step;
  bool operator==(const LambUpdate&) const = default;
};
/// LAMB's second pass. States as after its first.
struct LambScaledUpdate {
  LambUpdate update;
  double scale;  ///< Learning rate · trust ratio.
  bool operator==(const LambScaledUpdate&) const = default;
};

enum class UpdateKind : std::uint8_t {
  kSgd,
  kAdam,
  kAdagrad,
  kNAdam,
  kRAdam,
  kAdamax,
  kAdadelta,
  kRmsprop,
  kLion,
  kLamb,
  kLambScaled,
  // With the bits of ATen's fused kernels, which fuse multiplications and additions where the
  // instruction set can; float32 only.
  kAtenSgd,
  kAtenAdam,
  kAtenAdagrad,
};

inline constexpr std::size_t kMostStates = 3;

/// The same elements of a parameter, its gradient and its states.
struct UpdateCall {
  const void* update;  ///< The kind's struct.
  std::byte* parameter;
  const std::byte* gradient;
  std::byte* states[kMostStates];  ///< Null where there is none.
  std::size_t elements;
  bool maximize;
  /// LAMB's first pass adds the squares of the parameter and of its update here.
  double* squares;
};

using UpdateKernel = void (*)(const UpdateCall& call);

/// Elements of parameter and gradient, then of the states.
enum class UpdateElements : std::uint8_t {
  kFloat32,
  kFloat64,
  kBFloat16,
  kFloat16,
  kBFloat16WithFloat32,
  kFloat16WithFloat32,
};

struct UpdateTable {
  /// Null where there is none.
  UpdateKernel (*find)(UpdateKind kind, UpdateElements elements);
};

extern const UpdateTable kPortableUpdates;
#if defined(__x86_64__)
extern const UpdateTable kAvx2Updates;
extern const UpdateTable kAvx512Updates;
#endif

}  // namespace lockstep::inline internal
