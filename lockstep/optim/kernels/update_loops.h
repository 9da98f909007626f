#pragma once

#include <type_traits>

#include "lockstep/comm/kernels/kernel_vectors.h"
#include "lockstep/optim/kernels/update_kernels.h"

/// The arithmetic of the optimizers, in PyTorch's order of operations, and the loop around it. As
/// kernel_vectors.h: local to each file compiled for one instruction set.
namespace lockstep::inline internal {
namespace {

// Not those of <cmath>, inline templates that would be compiled for one instruction set here.
inline double power(double base, std::int64_t exponent) {
  return __builtin_pow(base, static_cast<double>(exponent));
}

template <class V>
V square_root(V x) {
  constexpr bool kIsDouble = sizeof(x[0]) == sizeof(double);
#if defined(__AVX512F__)
  // With a mask of all lanes: g++ 12 warns of the header of the forms without one.
  if constexpr (kIsDouble) {
    return (V)_mm512_maskz_sqrt_pd(0xff, (__m512d)x);
  } else {
    return (V)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
  }
#elif defined(__AVX2__)
  if constexpr (kIsDouble) {
    return (V)_mm256_sqrt_pd((__m256d)x);
  } else {
    return (V)_mm256_sqrt_ps((__m256)x);
  }
#elif defined(__x86_64__)
  if constexpr (kIsDouble) {
    return (V)_mm_sqrt_pd((__m128d)x);
  } else {
    return (V)_mm_sqrt_ps((__m128)x);
  }
#else
  for (std::size_t i = 0; i < sizeof(V) / sizeof(x[0]); ++i) x[i] = __builtin_sqrt(x[i]);
  return x;
#endif
}

template <class V>
V absolute(V x) {
  return x < 0 ? -x : x;
}

/// A NaN wins, as in torch.maximum.
template <class V>
V maximum(V a, V b) {
  return (a > b) | (a != a) ? a : b;
}

/// As ATen's: exact at both ends, so that an average with a beta of 0 is the gradient itself.
template <class V, class N>
V lerp(V from, V to, N weight) {
  return weight < N{0.5} ? from + weight * (to - from) : to - (to - from) * (1 - weight);
}

template <class N>
struct SgdStep {
  explicit SgdStep(const SgdUpdate& u)
      : rate(static_cast<N>(-u.lr)),
        momentum(static_cast<N>(u.momentum)),
        gain(static_cast<N>(1 - u.dampening)),
        decay(static_cast<N>(u.weight_decay)),
        nesterov(u.nesterov),
        is_first(u.is_first_step) {}
  template <class V>
  void operator()(V& p, V g, V* s) const {
    if (decay != 0) g = g + p * decay;
    if (momentum != 0) {
      s[0] = is_first ? g : s[0] * momentum + g * gain;
      g = nesterov ? g + s[0] * momentum : s[0];
    }
    p = p + g * rate;
  }
  N rate, momentum, gain, decay;
  bool nesterov, is_first;
};

template <class N>
struct AdamStep {
  explicit AdamStep(const AdamUpdate& u)
      : weight(static_cast<N>(1 - u.beta1)),
        beta2(static_cast<N>(u.beta2)),
        square_weight(static_cast<N>(1 - u.beta2)),
        correction(static_cast<N>(__builtin_sqrt(1 - power(u.beta2, u.step)))),
        rate(static_cast<N>(-u.lr / (1 - power(u.beta1, u.step)))),
        eps(static_cast<N>(u.eps)),
        decay(static_cast<N>(u.is_decoupled ? 0 : u.weight_decay)),
        shrink(static_cast<N>(u.is_decoupled ? 1 - u.lr * u.weight_decay : 1)) {}
  template <class V>
  void operator()(V& p, V g, V* s, bool has_max) const {
    if (decay != 0) g = g + p * decay;
    if (shrink != 1) p = p * shrink;
    s[0] = lerp(s[0], g, weight);
    s[1] = s[1] * beta2 + square_weight * g * g;
    if (has_max) s[2] = maximum(s[2], s[1]);
    const V denominator = square_root(has_max ? s[2] : s[1]) / correction + eps;
    p = p + rate * s[0] / denominator;
  }
  N weight, beta2, square_weight, correction, rate, eps, decay, shrink;
};

template <class N>
struct AdagradStep {
  explicit AdagradStep(const AdagradUpdate& u)
      : rate(static_cast<N>(-u.lr / (1 + static_cast<double>(u.step - 1) * u.lr_decay))),
        eps(static_cast<N>(u.eps)),
        decay(static_cast<N>(u.weight_decay)) {}
  template <class V>
  void operator()(V& p, V g, V* s) const {
    if (decay != 0) g = g + p * decay;
    s[0] = s[0] + g * g;
    p = p + rate * g / (square_root(s[0]) + eps);
  }
  N rate, eps, decay;
};

template <class N>
struct NAdamStep {
  explicit NAdamStep(const NAdamUpdate& u)
      : weight(static_cast<N>(1 - u.beta1)),
        beta2(static_cast<N>(u.beta2)),
        square_weight(static_cast<N>(1 - u.beta2)),
        correction(static_cast<N>(1 - power(u.beta2, u.step))),
        rate(static_cast<N>(-u.lr * (1 - u.mu) / (1 - u.mu_product))),
        average_rate(static_cast<N>(-u.lr * u.mu_next / (1 - u.mu_product * u.mu_next))),
        eps(static_cast<N>(u.eps)),
        decay(static_cast<N>(u.is_decoupled ? 0 : u.weight_decay)),
        shrink(static_cast<N>(u.is_decoupled ? 1 - u.lr * u.weight_decay : 1)) {}
  template <class V>
  void operator()(V& p, V g, V* s) const {
    if (shrink != 1) p = p * shrink;
    if (decay != 0) g = g + p * decay;
    s[0] = lerp(s[0], g, weight);
    s[1] = s[1] * beta2 + square_weight * g * g;
    const V denominator = square_root(s[1] / correction) + eps;
    p = p + rate * g / denominator;
    p = p + average_rate * s[0] / denominator;
  }
  N weight, beta2, square_weight, correction, rate, average_rate, eps, decay, shrink;
};

template <class N>
struct RAdamStep {
  explicit RAdamStep(const RAdamUpdate& u)
      : weight(static_cast<N>(1 - u.beta1)),
        beta2(static_cast<N>(u.beta2)),
        square_weight(static_cast<N>(1 - u.beta2)),
        average_correction(static_cast<N>(1 - power(u.beta1, u.step))),
        rate(static_cast<N>(u.lr)),
        eps(static_cast<N>(u.eps)),
        decay(static_cast<N>(u.is_decoupled ? 0 : u.weight_decay)),
        shrink(static_cast<N>(u.is_decoupled ? 1 - u.lr * u.weight_decay : 1)) {
    const auto step = static_cast<double>(u.step);
    const double decayed = power(u.beta2, u.step);
    const double longest = 2 / (1 - u.beta2) - 1;
    const double length = longest - 2 * step * decayed / (1 - decayed);
    is_adaptive = length > 5;
    if (!is_adaptive) return;
    correction = static_cast<N>(__builtin_sqrt(1 - decayed));
    rectification = static_cast<N>(__builtin_sqrt((length - 4) * (length - 2) * longest /
                                                  ((longest - 4) * (longest - 2) * length)));
  }
  template <class V>
  void operator()(V& p, V g, V* s) const {
    if (shrink != 1) p = p * shrink;
    if (decay != 0) g = g + p * decay;
    s[0] = lerp(s[0], g, weight);
    s[1] = s[1] * beta2 + square_weight * g * g;
    V change = s[0] / average_correction * rate;
    if (is_adaptive) change = change * (correction / (square_root(s[1]) + eps)) * rectification;
    p = p - change;
  }
  N weight, beta2, square_weight, average_correction, rate, eps, decay, shrink;
  N correction = 0, rectification = 0;
  bool is_adaptive;
};

template <class N>
struct AdamaxStep {
  explicit AdamaxStep(const AdamaxUpdate& u)
      : weight(static_cast<N>(1 - u.beta1)),
        beta2(static_cast<N>(u.beta2)),
        rate(static_cast<N>(-u.lr / (1 - power(u.beta1, u.step)))),
        eps(static_cast<N>(u.eps)),
        decay(static_cast<N>(u.weight_decay)) {}
  template <class V>
  void operator()(V& p, V g, V* s) const {
    if (decay != 0) g = g + p * decay;
    s[0] = lerp(s[0], g, weight);
    s[1] = maximum(s[1] * beta2, absolute(g) + eps);
    p = p + rate * s[0] / s[1];
  }
  N weight, beta2, rate, eps, decay;
};

template <class N>
struct AdadeltaStep {
  explicit AdadeltaStep(const AdadeltaUpdate& u)
      : rate(static_cast<N>(-u.lr)),
        rho(static_cast<N>(u.rho)),
        weight(static_cast<N>(1 - u.rho)),
        eps(static_cast<N>(u.eps)),
        decay(static_cast<N>(u.weight_decay)) {}
  template <class V>
  void operator()(V& p, V g, V* s) const {
    if (decay != 0) g = g + p * decay;
    s[0] = s[0] * rho + weight * g * g;
    const V change = square_root(s[1] + eps) / square_root(s[0] + eps) * g;
    s[1] = s[1] * rho + weight * change * change;
    p = p + change * rate;
  }
  N rate, rho, weight, eps, decay;
};

template <class N>
struct RmspropStep {
  explicit RmspropStep(const RmspropUpdate& u)
      : rate(static_cast<N>(-u.lr)),
        alpha(static_cast<N>(u.alpha)),
        weight(static_cast<N>(1 - u.alpha)),
        eps(static_cast<N>(u.eps)),
        decay(static_cast<N>(u.weight_decay)),
        momentum(static_cast<N>(u.momentum)) {}
  template <class V>
  void operator()(V& p, V g, V* s, bool is_centered) const {
    if (decay != 0) g = g + p * decay;
    s[0] = s[0] * alpha + weight * g * g;
    V square = s[0];
    if (is_centered) {
      s[2] = lerp(s[2], g, weight);
      square = square - s[2] * s[2];
    }
    const V average = square_root(square) + eps;
    if (momentum > 0) {
      s[1] = s[1] * momentum + g / average;
      p = p + s[1] * rate;
    } else {
      p = p + rate * g / average;
    }
  }
  N rate, alpha, weight, eps, decay, momentum;
};

template <class N>
struct LionStep {
  explicit LionStep(const LionUpdate& u)
      : rate(static_cast<N>(u.lr)),
        beta1(static_cast<N>(u.beta1)),
        weight1(static_cast<N>(1 - u.beta1)),
        beta2(static_cast<N>(u.beta2)),
        weight2(static_cast<N>(1 - u.beta2)),
        decay(static_cast<N>(u.weight_decay)) {}
  template <class V>
  void operator()(V& p, V g, V* s) const {
    const V direction = s[0] * beta1 + g * weight1;
    // Neither for 0; a NaN must not look like one.
    const V sign = direction > 0 ? V{} + 1 : direction < 0 ? V{} - 1 : direction;
    p = p - (sign + p * decay) * rate;
    s[0] = s[0] * beta2 + g * weight2;
  }
  N rate, beta1, weight1, beta2, weight2, decay;
};

template <class N>
struct LambStep {
  explicit LambStep(const LambUpdate& u)
      : weight(static_cast<N>(1 - u.beta1)),
        beta2(static_cast<N>(u.beta2)),
        square_weight(static_cast<N>(1 - u.beta2)),
        average_correction(static_cast<N>(1 - power(u.beta1, u.step))),
        square_correction(static_cast<N>(1 - power(u.beta2, u.step))),
        eps(static_cast<N>(u.eps)),
        decay(static_cast<N>(u.weight_decay)) {}
  template <class V>
  void average(V g, V* s) const {
    s[0] = lerp(s[0], g, weight);
    s[1] = s[1] * beta2 + square_weight * g * g;
  }
  template <class V>
  V direction(V p, const V* s) const {
    return s[0] / average_correction / (square_root(s[1] / square_correction) + eps) + decay * p;
  }
  N weight, beta2, square_weight, average_correction, square_correction, eps, decay;
};

/// What a pass over memory writes, and whether it needs the gradient.
enum class Pass : std::uint8_t { kWhole, kStatesOnly, kParameterOnly };

/// Where a loop's vectors are in memory, in the formats of parameter and states.
template <class ParameterFormat, class StateFormat, Pass kPass = Pass::kWhole>
struct Place {
  using V = typename ParameterFormat::Lanes;
  using ParameterPacked = typename ParameterFormat::Packed;
  using StatePacked = typename StateFormat::Packed;
  static constexpr std::size_t kWidth = kLanes<ParameterFormat>;
  static_assert(kLanes<StateFormat> == kWidth);

  /// Vector number `i`, of which `count` lanes are in the buffers.
  template <class Body>
  static void visit(const UpdateCall& call, std::size_t i, std::size_t count, const Body& body) {
    constexpr std::size_t kSize = ParameterFormat::kElementBytes;
    constexpr std::size_t kStateSize = StateFormat::kElementBytes;
    const std::size_t first = i * kWidth;
    const bool is_whole = count == kWidth;
    const auto get = [&](const std::byte* from) {
      return ParameterFormat::unpack(is_whole ? load<ParameterPacked>(from)
                                              : load_part<ParameterPacked>(from, count * kSize));
    };
    V p = get(call.parameter + first * kSize);
    V g = {};
    if constexpr (kPass != Pass::kParameterOnly) g = get(call.gradient + first * kSize);
    if (call.maximize) g = -g;
    V s[kMostStates] = {};
#pragma GCC unroll 3
    for (std::size_t k = 0; k < kMostStates; ++k) {
      if (call.states[k] == nullptr) continue;
      const std::byte* const from = call.states[k] + first * kStateSize;
      s[k] = StateFormat::unpack(is_whole ? load<StatePacked>(from)
                                          : load_part<StatePacked>(from, count * kStateSize));
    }
    body(p, g, s);
    if constexpr (kPass == Pass::kStatesOnly) {
    } else if (is_whole) {
      store(call.parameter + first * kSize, ParameterFormat::pack(p));
    } else {
      store_part(call.parameter + first * kSize, ParameterFormat::pack(p), count * kSize);
    }
    if constexpr (kPass == Pass::kParameterOnly) return;
#pragma GCC unroll 3
    for (std::size_t k = 0; k < kMostStates; ++k) {
      if (call.states[k] == nullptr) continue;
      std::byte* const to = call.states[k] + first * kStateSize;
      if (is_whole) {
        store(to, StateFormat::pack(s[k]));
      } else {
        store_part(to, StateFormat::pack(s[k]), count * kStateSize);
      }
    }
  }

  template <class Body>
  static void visit_all(const UpdateCall& call, const Body& body) {
    const std::size_t whole = call.elements / kWidth;
    for (std::size_t i = 0; i < whole; ++i) visit(call, i, kWidth, body);
    if (call.elements % kWidth != 0) visit(call, whole, call.elements % kWidth, body);
  }
};

template <class P, class S, template <class> class Step, class Update>
void run_update(const UpdateCall& call) {
  using V = typename P::Lanes;
  using N = std::remove_cvref_t<decltype(V{}[0] + 0)>;
  const Step<N> step(*static_cast<const Update*>(call.update));
  if constexpr (std::is_invocable_v<const Step<N>&, V&, V, V*, bool>) {
    const bool has_third = call.states[2] != nullptr;
    Place<P, S>::visit_all(call, [&](V& p, V g, V* s) { step(p, g, s, has_third); });
  } else {
    Place<P, S>::visit_all(call, step);
  }
}

/// The sums in float64, of blocks whose sums in float32 lose nothing that counts. The lanes are
/// those of 64 bytes on every instruction set: a partial sum adds the same elements everywhere.
template <class P, class S>
void run_lamb(const UpdateCall& call) {
  using V = typename P::Lanes;
  using N = std::remove_cvref_t<decltype(V{}[0] + 0)>;
  const LambStep<N> step(*static_cast<const LambUpdate*>(call.update));
  using Loop = Place<P, S, Pass::kStatesOnly>;
  constexpr std::size_t kWidth = Loop::kWidth;
  static_assert(64 % sizeof(V) == 0 && sizeof(V) == kWidth * sizeof(N));
  constexpr std::size_t kParts = 64 / sizeof(V);
  constexpr std::size_t kBlock = 64 * kParts;
  const std::size_t vectors = (call.elements + kWidth - 1) / kWidth;
  for (std::size_t begin = 0; begin < vectors; begin += kBlock) {
    V parameter_squares[kParts] = {};
    V update_squares[kParts] = {};
    const std::size_t end = begin + kBlock < vectors ? begin + kBlock : vectors;
    for (std::size_t first = begin; first < end; first += kParts) {
#pragma GCC unroll 8
      for (std::size_t part = 0; part < kParts; ++part) {
        const std::size_t i = first + part;
        if (i >= end) break;
        const std::size_t left = call.elements - i * kWidth;
        const std::size_t count = left < kWidth ? left : kWidth;
        Loop::visit(call, i, count, [&](V& p, V g, V* s) {
          step.average(g, s);
          V direction = step.direction(p, s);
          for (std::size_t lane = count; lane < kWidth; ++lane) direction[lane] = 0;
          parameter_squares[part] += p * p;
          update_squares[part] += direction * direction;
        });
      }
    }
    for (std::size_t part = 0; part < kParts; ++part) {
      for (std::size_t lane = 0; lane < kWidth; ++lane) {
        call.squares[0] += static_cast<double>(parameter_squares[part][lane]);
        call.squares[1] += static_cast<double>(update_squares[part][lane]);
      }
    }
  }
}

template <class P, class S>
void run_lamb_scaled(const UpdateCall& call) {
  using V = typename P::Lanes;
  using N = std::remove_cvref_t<decltype(V{}[0] + 0)>;
  const auto& scaled = *static_cast<const LambScaledUpdate*>(call.update);
  const LambStep<N> step(scaled.update);
  const auto scale = static_cast<N>(scaled.scale);
  using Loop = Place<P, S, Pass::kParameterOnly>;
  Loop::visit_all(call, [&](V& p, V, V* s) { p = p - step.direction(p, s) * scale; });
}

template <class P, class S>
UpdateKernel find_update_of(UpdateKind kind) {
  switch (kind) {
    case UpdateKind::kSgd:
      return run_update<P, S, SgdStep, SgdUpdate>;
    case UpdateKind::kAdam:
      return run_update<P, S, AdamStep, AdamUpdate>;
    case UpdateKind::kAdagrad:
      return run_update<P, S, AdagradStep, AdagradUpdate>;
    case UpdateKind::kNAdam:
      return run_update<P, S, NAdamStep, NAdamUpdate>;
    case UpdateKind::kRAdam:
      return run_update<P, S, RAdamStep, RAdamUpdate>;
    case UpdateKind::kAdamax:
      return run_update<P, S, AdamaxStep, AdamaxUpdate>;
    case UpdateKind::kAdadelta:
      return run_update<P, S, AdadeltaStep, AdadeltaUpdate>;
    case UpdateKind::kRmsprop:
      return run_update<P, S, RmspropStep, RmspropUpdate>;
    case UpdateKind::kLion:
      return run_update<P, S, LionStep, LionUpdate>;
    case UpdateKind::kLamb:
      return run_lamb<P, S>;
    case UpdateKind::kLambScaled:
      return run_lamb_scaled<P, S>;
  }
  return nullptr;
}

inline UpdateKernel find_update(UpdateKind kind, UpdateElements elements) {
  switch (elements) {
    case UpdateElements::kFloat32:
      return find_update_of<Plain<float>, Plain<float>>(kind);
    case UpdateElements::kFloat64:
      return find_update_of<Plain<double>, Plain<double>>(kind);
    case UpdateElements::kBFloat16:
      return find_update_of<BFloat16, BFloat16>(kind);
    case UpdateElements::kFloat16:
      return find_update_of<Float16, Float16>(kind);
    case UpdateElements::kBFloat16WithFloat32:
      return find_update_of<BFloat16, Plain<float>>(kind);
    case UpdateElements::kFloat16WithFloat32:
      return find_update_of<Float16, Plain<float>>(kind);
  }
  return nullptr;
}

}  // namespace
}  // namespace lockstep::inline internal
