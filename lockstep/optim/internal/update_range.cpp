#include "lockstep/optim/internal/update_range.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/internal/check.h"

namespace lockstep::inline internal {
namespace {

// Fewer are not worth another thread: 16 µs of memory traffic.
constexpr std::int64_t kGrainElements = std::int64_t{1} << 15;
static_assert(kGrainElements % kRangeElements == 0);

const UpdateTable* table_of(InstructionSet set) {
  if (!is_supported(set)) return nullptr;
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return &kAvx512Updates;
  if (set == InstructionSet::kAvx2) return &kAvx2Updates;
#endif
  return &kPortableUpdates;
}

UpdateCall part_of(const void* update, const UpdateRange& range, std::int64_t begin,
                   std::int64_t end) {
  const auto bytes = static_cast<std::ptrdiff_t>(c10::elementSize(range.dtype));
  const auto state_bytes = static_cast<std::ptrdiff_t>(c10::elementSize(range.state_dtype));
  UpdateCall call{.update = update,
                  .parameter = static_cast<std::byte*>(range.parameter) + begin * bytes,
                  .gradient = static_cast<const std::byte*>(range.gradient) + begin * bytes,
                  .states = {},
                  .elements = static_cast<std::size_t>(end - begin),
                  .maximize = range.maximize,
                  .squares = nullptr};
  for (std::size_t k = 0; k < kMostStates; ++k) {
    if (range.states[k] == nullptr) continue;
    call.states[k] = static_cast<std::byte*>(range.states[k]) + begin * state_bytes;
  }
  return call;
}

// One that has the bits of ATen's kernels, for which ATEN_CPU_CAPABILITY may choose another.
std::optional<InstructionSet> instruction_set_of_aten() {
#if defined(__x86_64__)
  static const bool has_avx = at::get_cpu_capability().starts_with("AVX");
  return has_avx ? best_instruction_set() : InstructionSet::kPortable;
#else
  return std::nullopt;
#endif
}

UpdateKernel kernel_for(UpdateKind kind, const UpdateRange& range) {
  const bool is_of_aten = kind >= UpdateKind::kAtenSgd;
  const InstructionSet set = is_of_aten ? *instruction_set_of_aten() : best_instruction_set();
  return find_update_kernel(set, kind, update_elements(range.dtype, range.state_dtype));
}

void run(UpdateKind kind, const void* update, const UpdateRange& range) {
  const UpdateKernel kernel = kernel_for(kind, range);
  // In lines of memory, so that no two threads write to one.
  const std::int64_t lines = (range.elements + kRangeElements - 1) / kRangeElements;
  at::parallel_for(0, lines, kGrainElements / kRangeElements,
                   [&](std::int64_t begin, std::int64_t end) {
                     kernel(part_of(update, range, begin * kRangeElements,
                                    std::min(end * kRangeElements, range.elements)));
                   });
}

template <class Update>
void run_each(UpdateKind kind, UpdateKind of_aten, const Update& update,
              std::span<const UpdateRange> ranges) {
  const bool has_bits_of_aten = ranges[0].dtype == at::kFloat;
  for (const UpdateRange& range : ranges) run(has_bits_of_aten ? of_aten : kind, &update, range);
}

at::Tensor tensor_over(void* data, const UpdateRange& range) {
  return at::from_blob(data, {range.elements}, at::TensorOptions(range.dtype));
}

/// What a kernel of ATen's takes.
struct RangeTensors {
  explicit RangeTensors(std::span<const UpdateRange> ranges) {
    for (const UpdateRange& range : ranges) {
      parameters.push_back(tensor_over(range.parameter, range));
      gradients.push_back(tensor_over(const_cast<void*>(range.gradient), range));
      for (std::size_t k = 0; k < kMostStates; ++k) {
        if (range.states[k] != nullptr) states[k].push_back(tensor_over(range.states[k], range));
      }
    }
  }

  std::vector<at::Tensor> parameters = {};
  std::vector<at::Tensor> gradients = {};
  std::array<std::vector<at::Tensor>, kMostStates> states = {};
};

at::Tensor step_tensor(std::int64_t step) {
  return at::scalar_tensor(static_cast<double>(step), at::kFloat);
}

}  // namespace

UpdateKernel find_update_kernel(InstructionSet set, UpdateKind kind, UpdateElements elements) {
  const UpdateTable* const table = table_of(set);
  return table == nullptr ? nullptr : table->find(kind, elements);
}

UpdateElements update_elements(at::ScalarType dtype, at::ScalarType state_dtype) {
  const bool is_wider = dtype != state_dtype;
  LOCKSTEP_ASSERT(!is_wider || state_dtype == at::kFloat);
  switch (dtype) {
    case at::kFloat:
      return UpdateElements::kFloat32;
    case at::kDouble:
      return UpdateElements::kFloat64;
    case at::kBFloat16:
      return is_wider ? UpdateElements::kBFloat16WithFloat32 : UpdateElements::kBFloat16;
    default:
      LOCKSTEP_ASSERT(dtype == at::kHalf);
      return is_wider ? UpdateElements::kFloat16WithFloat32 : UpdateElements::kFloat16;
  }
}

namespace {

bool has_kernel_beside_atens(const UpdateRange& range) {
  if (range.dtype == at::kFloat) return instruction_set_of_aten().has_value();
  return range.dtype != range.state_dtype;
}

}  // namespace

bool has_own_kernel(const SgdUpdate&, const UpdateRange& range) {
  const bool has_momentum = range.states[0] != nullptr;
  return has_kernel_beside_atens(range) || (has_momentum && loses_momentum(range.dtype));
}
bool has_own_kernel(const AdamUpdate&, const UpdateRange& range) {
  return has_kernel_beside_atens(range);
}
bool has_own_kernel(const AdagradUpdate&, const UpdateRange& range) {
  return has_kernel_beside_atens(range);
}

void update_ranges(const SgdUpdate& update, std::span<const UpdateRange> ranges) {
  if (ranges.empty()) return;
  if (has_own_kernel(update, ranges[0])) {
    return run_each(UpdateKind::kSgd, UpdateKind::kAtenSgd, update, ranges);
  }
  const c10::NoGradGuard no_grad;
  const RangeTensors tensors(ranges);
  at::_fused_sgd_(tensors.parameters, tensors.gradients, tensors.states[0], update.weight_decay,
                  update.momentum, update.lr, update.dampening, update.nesterov, ranges[0].maximize,
                  update.is_first_step);
}

void update_ranges(const AdamUpdate& update, std::span<const UpdateRange> ranges) {
  if (ranges.empty()) return;
  if (has_own_kernel(update, ranges[0])) {
    return run_each(UpdateKind::kAdam, UpdateKind::kAtenAdam, update, ranges);
  }
  const c10::NoGradGuard no_grad;
  const RangeTensors tensors(ranges);
  const std::vector<at::Tensor> counts(ranges.size(), step_tensor(update.step));
  const auto apply = [&](auto fused) {
    fused(tensors.parameters, tensors.gradients, tensors.states[0], tensors.states[1],
          tensors.states[2], counts, update.lr, update.beta1, update.beta2, update.weight_decay,
          update.eps, !tensors.states[2].empty(), ranges[0].maximize);
  };
  using Tensors = at::TensorList;
  if (update.is_decoupled) {
    apply([](Tensors p, Tensors g, Tensors a, Tensors s, Tensors m, Tensors steps, auto... rest) {
      at::_fused_adamw_(p, g, a, s, m, steps, rest...);
    });
  } else {
    apply([](Tensors p, Tensors g, Tensors a, Tensors s, Tensors m, Tensors steps, auto... rest) {
      at::_fused_adam_(p, g, a, s, m, steps, rest...);
    });
  }
}

void update_ranges(const AdagradUpdate& update, std::span<const UpdateRange> ranges) {
  if (ranges.empty()) return;
  if (has_own_kernel(update, ranges[0])) {
    return run_each(UpdateKind::kAdagrad, UpdateKind::kAtenAdagrad, update, ranges);
  }
  const c10::NoGradGuard no_grad;
  const RangeTensors tensors(ranges);
  at::_fused_adagrad_(tensors.parameters, tensors.gradients, tensors.states[0],
                      std::vector<at::Tensor>(ranges.size(), step_tensor(update.step)), update.lr,
                      update.lr_decay, update.weight_decay, update.eps, ranges[0].maximize);
}

void update_range(const SgdUpdate& update, const UpdateRange& range) {
  if (range.elements > 0) update_ranges(update, std::span(&range, 1));
}
void update_range(const AdamUpdate& update, const UpdateRange& range) {
  if (range.elements > 0) update_ranges(update, std::span(&range, 1));
}
void update_range(const AdagradUpdate& update, const UpdateRange& range) {
  if (range.elements > 0) update_ranges(update, std::span(&range, 1));
}
void update_range(const NAdamUpdate& update, const UpdateRange& range) {
  run(UpdateKind::kNAdam, &update, range);
}
void update_range(const RAdamUpdate& update, const UpdateRange& range) {
  run(UpdateKind::kRAdam, &update, range);
}
void update_range(const AdamaxUpdate& update, const UpdateRange& range) {
  run(UpdateKind::kAdamax, &update, range);
}
void update_range(const AdadeltaUpdate& update, const UpdateRange& range) {
  run(UpdateKind::kAdadelta, &update, range);
}
void update_range(const RmspropUpdate& update, const UpdateRange& range) {
  run(UpdateKind::kRmsprop, &update, range);
}
void update_range(const LionUpdate& update, const UpdateRange& range) {
  run(UpdateKind::kLion, &update, range);
}
void update_range(const LambScaledUpdate& update, const UpdateRange& range) {
  run(UpdateKind::kLambScaled, &update, range);
}

LambSquares update_lamb_states(const LambUpdate& update, const UpdateRange& range) {
  const UpdateKernel kernel = kernel_for(UpdateKind::kLamb, range);
  const std::int64_t blocks = (range.elements + kLambBlockElements - 1) / kLambBlockElements;
  std::vector<std::array<double, 2>> squares(static_cast<std::size_t>(blocks));
  at::parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      UpdateCall call = part_of(&update, range, block * kLambBlockElements,
                                std::min((block + 1) * kLambBlockElements, range.elements));
      call.squares = squares[static_cast<std::size_t>(block)].data();
      kernel(call);
    }
  });
  LambSquares sums;
  for (const auto& [of_parameter, of_update] : squares) {
    sums.parameter += of_parameter;
    sums.update += of_update;
  }
  return sums;
}

double lamb_trust_ratio(const LambSquares& squares) {
  const bool has_norms = squares.parameter > 0 && squares.update > 0;
  return has_norms ? std::sqrt(squares.parameter) / std::sqrt(squares.update) : 1.0;
}

}  // namespace lockstep::inline internal
