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

/// How products that are added are rounded: each operation; or as in ATen's kernels of float32, in
/// which the compiler has fused them where the instruction set can; or as there for elements that
/// do not fill a vector of kAtenLanes, on AVX-512 too, for which ATen has no kernels of its own.
enum class Rounding : std::uint8_t { kEach, kAten, kAtenRest };
constexpr std::size_t kAtenLanes = 8;

/// a * b + c
template <Rounding kRounding, class V, class N>
V multiply_add(V a, N b, V c) {
  // b - V{} is b in all lanes, also where that is -0.
#if defined(__AVX512F__)
  if constexpr (kRounding != Rounding::kEach) {
    return (V)_mm512_fmadd_ps((__m512)a, (__m512)(b - V{}), (__m512)c);
  }
#elif defined(__AVX2__)
  if constexpr (kRounding != Rounding::kEach) {
    return (V)_mm256_fmadd_ps((__m256)a, (__m256)(b - V{}), (__m256)c);
  }
#endif
  return a * b + c;
}

/// a * b + c * d
template <Rounding kRounding, class V, class N, class M>
V add_products(V a, N b, V c, M d) {
  if constexpr (kRounding == Rounding::kAtenRest) return multiply_add<kRounding>(a, b, c * d);
  return multiply_add<kRounding>(c, d, a * b);
}

template <class V>
V absolute(V x) {
  return x < 0 ? -x : x;
}

/// A NaN wins, as in torch.maximum. ATen calls std::max for the rest.
template <Rounding kRounding = Rounding::kEach, class V>
V maximum(V a, V b) {
  if constexpr (kRounding == Rounding::kAtenRest) return a < b ? b : a;
  return (a > b) | (a != a) ? a : b;
}

/// As ATen's: exact at both ends, so that an average with a beta of 0 is the gradient itself.
template <Rounding kRounding = Rounding::kEach, class V, class N>
V lerp(V from, V to, N weight) {
  if (weight < N{0.5}) return multiply_add<kRounding>(to - from, weight, from);
  // Equal, but for the sign of 0.
  constexpr bool kIsVector = kRounding == Rounding::kAten;
  if constexpr (kIsVector) return multiply_add<kRounding>(to - from, weight - 1, to);
  return multiply_add<kRounding>(-(to - from), 1 - weight, to);
}

template <class N, Rounding kRounding = Rounding::kEach>
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
    if (decay != 0) g = multiply_add<kRounding>(p, decay, g);
    if (momentum != 0) {
      s[0] = is_first ? g : add_products<kRounding>(s[0], momentum, g, gain);
      g = nesterov ? multiply_add<kRounding>(s[0], momentum, g) : s[0];
    }
    p = multiply_add<kRounding>(g, rate, p);
  }
  N rate, momentum, gain, decay;
  bool nesterov, is_first;
};

template <class N, Rounding kRounding = Rounding::kEach>
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
    if (decay != 0) g = multiply_add<kRounding>(p, decay, g);
    if (shrink != 1) p = p * shrink;
    s[0] = lerp<kRounding>(s[0], g, weight);
    s[1] = add_products<kRounding>(s[1], beta2, square_weight * g, g);
    if (has_max) s[2] = maximum<kRounding>(s[2], s[1]);
    const V denominator = square_root(has_max ? s[2] : s[1]) / correction + eps;
    p = p + rate * s[0] / denominator;
  }
  N weight, beta2, square_weight, correction, rate, eps, decay, shrink;
};

template <class N, Rounding kRounding = Rounding::kEach>
struct AdagradStep {
  explicit AdagradStep(const AdagradUpdate& u)
      : rate(static_cast<N>(-u.lr / (1 + static_cast<double>(u.step - 1) * u.lr_decay))),
        eps(static_cast<N>(u.eps)),
        decay(static_cast<N>(u.weight_decay)) {}
  template <class V>
  void operator()(V& p, V g, V* s) const {
    if (decay != 0) g = multiply_add<kRounding>(p, decay, g);
    s[0] = multiply_add<kRounding>(g, g, s[0]);
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
  // Where callers update small parts one after the other: as much as such a part has, across the
  // pages of memory at which the processor's own prefetching ends.
  static constexpr std::size_t kAheadBytes = 4096;

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
    __builtin_prefetch(call.parameter + first * kSize + kAheadBytes, 1);
    V p = get(call.parameter + first * kSize);
    V g = {};
    if constexpr (kPass != Pass::kParameterOnly) g = get(call.gradient + first * kSize);
    if (call.maximize) g = -g;
    V s[kMostStates] = {};
#pragma GCC unroll 3
    for (std::size_t k = 0; k < kMostStates; ++k) {
      if (call.states[k] == nullptr) continue;
      const std::byte* const from = call.states[k] + first * kStateSize;
      __builtin_prefetch(from + kAheadBytes, 1);
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

template <class P, class S, class Step>
void run_step(const UpdateCall& call, const Step& step) {
  using V = typename P::Lanes;
  if constexpr (std::is_invocable_v<const Step&, V&, V, V*, bool>) {
    const bool has_third = call.states[2] != nullptr;
    Place<P, S>::visit_all(call, [&](V& p, V g, V* s) { step(p, g, s, has_third); });
  } else {
    Place<P, S>::visit_all(call, step);
  }
}

template <class P, class S, template <class> class Step, class Update>
void run_update(const UpdateCall& call) {
  using N = std::remove_cvref_t<decltype(typename P::Lanes{}[0] + 0)>;
  run_step<P, S>(call, Step<N>(*static_cast<const Update*>(call.update)));
}

template <template <class, Rounding> class Step, class Update>
void run_aten(const UpdateCall& call) {
  using P = Plain<float>;
  const auto& update = *static_cast<const Update*>(call.update);
  UpdateCall whole = call;
  whole.elements -= call.elements % kAtenLanes;
  run_step<P, P>(whole, Step<float, Rounding::kAten>(update));
  if (whole.elements == call.elements) return;
  const std::size_t done = whole.elements * sizeof(float);
  UpdateCall rest = call;
  rest.elements -= whole.elements;
  rest.parameter += done;
  rest.gradient += done;
  for (std::byte*& state : rest.states) {
    if (state != nullptr) state += done;
  }
  run_step<P, P>(rest, Step<float, Rounding::kAtenRest>(update));
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

template <class N>
using SgdOf = SgdStep<N>;
template <class N>
using AdamOf = AdamStep<N>;
template <class N>
using AdagradOf = AdagradStep<N>;

template <class P, class S>
UpdateKernel find_update_of(UpdateKind kind) {
  switch (kind) {
    case UpdateKind::kSgd:
      return run_update<P, S, SgdOf, SgdUpdate>;
    case UpdateKind::kAdam:
      return run_update<P, S, AdamOf, AdamUpdate>;
    case UpdateKind::kAdagrad:
      return run_update<P, S, AdagradOf, AdagradUpdate>;
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
    default:
      break;
  }
  if constexpr (std::is_same_v<P, Plain<float>>) {
    if (kind == UpdateKind::kAtenSgd) return run_aten<SgdStep, SgdUpdate>;
    if (kind == UpdateKind::kAtenAdam) return run_aten<AdamStep, AdamUpdate>;
    if (kind == UpdateKind::kAtenAdagrad) return run_aten<AdagradStep, AdagradUpdate>;
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
