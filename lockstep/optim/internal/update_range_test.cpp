#include "lockstep/optim/internal/update_range.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/process/child_process.h"

namespace lockstep::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr UpdateElements kAllElements[] = {UpdateElements::kFloat32,
                                           UpdateElements::kFloat64,
                                           UpdateElements::kBFloat16,
                                           UpdateElements::kFloat16,
                                           UpdateElements::kBFloat16WithFloat32,
                                           UpdateElements::kFloat16WithFloat32};

std::pair<at::ScalarType, at::ScalarType> dtypes_of(UpdateElements elements) {
  switch (elements) {
    case UpdateElements::kFloat32:
      return {at::kFloat, at::kFloat};
    case UpdateElements::kFloat64:
      return {at::kDouble, at::kDouble};
    case UpdateElements::kBFloat16:
      return {at::kBFloat16, at::kBFloat16};
    case UpdateElements::kFloat16:
      return {at::kHalf, at::kHalf};
    case UpdateElements::kBFloat16WithFloat32:
      return {at::kBFloat16, at::kFloat};
    default:
      return {at::kHalf, at::kFloat};
  }
}

struct Buffers {
  explicit Buffers(UpdateElements elements, std::int64_t size) {
    const auto [dtype, state_dtype] = dtypes_of(elements);
    const at::Tensor index = at::arange(size, at::kDouble);
    parameter = index.sin().to(dtype);
    gradient = (index * 1.7).cos().mul(3).to(dtype);
    for (int k = 0; k < 3; ++k) states.push_back((index + k).cos().square().to(state_dtype));
  }
  UpdateRange range(std::int64_t begin, std::int64_t end) const {
    const auto at = [&](const at::Tensor& tensor) {
      return static_cast<std::byte*>(tensor.data_ptr()) +
             begin * static_cast<std::int64_t>(tensor.element_size());
    };
    return {.dtype = parameter.scalar_type(),
            .state_dtype = states[0].scalar_type(),
            .parameter = at(parameter),
            .gradient = at(gradient),
            .states = {at(states[0]), at(states[1]), at(states[2])},
            .elements = end - begin};
  }
  bool equal(const Buffers& other) const {
    bool same = same_bytes(parameter, other.parameter);
    for (std::size_t k = 0; k < 3; ++k) same = same && same_bytes(states[k], other.states[k]);
    return same;
  }
  static bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
    return a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
  }
  at::Tensor parameter, gradient;
  Tensors states;
};

/// Calls `check` with each kind of update that Lockstep computes itself, and its kind.
template <class Check>
void for_each_update(const Check& check) {
  check(UpdateKind::kSgd, SgdUpdate{.lr = 0.1,
                                    .momentum = 0.9,
                                    .dampening = 0.1,
                                    .weight_decay = 0.01,
                                    .nesterov = true,
                                    .is_first_step = false});
  check(UpdateKind::kAdam, AdamUpdate{.lr = 0.1,
                                      .beta1 = 0.9,
                                      .beta2 = 0.99,
                                      .eps = 1e-8,
                                      .weight_decay = 0.1,
                                      .is_decoupled = true,
                                      .step = 3});
  check(UpdateKind::kAdagrad,
        AdagradUpdate{.lr = 0.1, .lr_decay = 0.1, .weight_decay = 0.1, .eps = 1e-10, .step = 3});
  check(UpdateKind::kNAdam, NAdamUpdate{.lr = 0.1,
                                        .beta1 = 0.9,
                                        .beta2 = 0.99,
                                        .eps = 1e-8,
                                        .weight_decay = 0.1,
                                        .is_decoupled = false,
                                        .mu = 0.5,
                                        .mu_next = 0.6,
                                        .mu_product = 0.25,
                                        .step = 3});
  for (const std::int64_t step : {1, 100}) {
    check(UpdateKind::kRAdam, RAdamUpdate{.lr = 0.1,
                                          .beta1 = 0.9,
                                          .beta2 = 0.99,
                                          .eps = 1e-8,
                                          .weight_decay = 0.1,
                                          .is_decoupled = false,
                                          .step = step});
  }
  check(UpdateKind::kAdamax,
        AdamaxUpdate{
            .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1, .step = 3});
  check(UpdateKind::kAdadelta,
        AdadeltaUpdate{.lr = 0.1, .rho = 0.9, .eps = 1e-6, .weight_decay = 0.1});
  check(UpdateKind::kRmsprop,
        RmspropUpdate{.lr = 0.1, .alpha = 0.9, .eps = 1e-8, .weight_decay = 0.1, .momentum = 0.9});
  check(UpdateKind::kLion, LionUpdate{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1});
  const LambUpdate lamb{.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1, .step = 3};
  check(UpdateKind::kLambScaled, LambScaledUpdate{.update = lamb, .scale = 0.1});
}

TEST(UpdateKernels, AllInstructionSetsGiveTheSameBits) {
  const auto check = [](UpdateKind kind, const auto& update) {
    for (const UpdateElements elements : kAllElements) {
      for (const std::int64_t size : {0, 1, 7, 16, 33, 1000, 5003}) {
        const auto run = [&](InstructionSet set, const Buffers& buffers) {
          const UpdateRange range = buffers.range(0, size);
          std::array<double, 2> squares = {0, 0};
          UpdateCall call{.update = &update,
                          .parameter = static_cast<std::byte*>(range.parameter),
                          .gradient = static_cast<const std::byte*>(range.gradient),
                          .states = {},
                          .elements = static_cast<std::size_t>(size),
                          .maximize = true,
                          .squares = squares.data()};
          for (std::size_t k = 0; k < 3; ++k) {
            call.states[k] = static_cast<std::byte*>(range.states[k]);
          }
          find_update_kernel(set, kind, elements)(call);
          return squares;
        };
        Buffers expected(elements, size);
        const std::array<double, 2> squares = run(InstructionSet::kPortable, expected);
        for (const auto set : {InstructionSet::kAvx2, InstructionSet::kAvx512}) {
          if (!is_supported(set)) continue;
          Buffers buffers(elements, size);
          EXPECT_EQ(run(set, buffers), squares);
          EXPECT_TRUE(buffers.equal(expected))
              << instruction_set_name(set) << ", kind " << static_cast<int>(kind) << ", elements "
              << static_cast<int>(elements) << ", size " << size;
        }
      }
    }
  };
  for_each_update(check);
  check(UpdateKind::kLamb,
        LambUpdate{.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1, .step = 3});
}

// An average between numbers of different size is one of them at the ends, as ATen's lerp.
TEST(UpdateKernels, AFirstBetaOfZeroGivesTheGradient) {
  Buffers buffers(UpdateElements::kFloat32, 37);
  buffers.states[0].fill_(1e9);
  update_range(RAdamUpdate{.lr = 0.1,
                           .beta1 = 0,
                           .beta2 = 0.99,
                           .eps = 1e-8,
                           .weight_decay = 0,
                           .is_decoupled = false,
                           .step = 3},
               buffers.range(0, 37));
  EXPECT_TRUE(buffers.states[0].equal(buffers.gradient));
}

// What lets several processes update parts of one parameter.
TEST(UpdateRange, PartsGiveTheBitsOfTheWhole) {
  std::mt19937 random(11);
  for_each_update([&](UpdateKind kind, const auto& update) {
    for (const UpdateElements elements : kAllElements) {
      constexpr std::int64_t kSize = 5003;
      Buffers whole(elements, kSize);
      update_range(update, whole.range(0, kSize));
      Buffers parts(elements, kSize);
      for (std::int64_t begin = 0; begin < kSize;) {
        const std::int64_t lines = 1 + static_cast<std::int64_t>(random() % 20);
        const std::int64_t end = std::min(begin + lines * kRangeElements, kSize);
        update_range(update, parts.range(begin, end));
        begin = end;
      }
      EXPECT_TRUE(parts.equal(whole))
          << "kind " << static_cast<int>(kind) << ", elements " << static_cast<int>(elements);
    }
  });
}

class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

TEST(UpdateRange, ThreadsDoNotChangeBits) {
  constexpr std::int64_t kSize = (std::int64_t{1} << 18) + 77;
  const auto run = [&](int threads, Buffers& buffers) {
    const Threads set(threads);
    const LambUpdate lamb{.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0, .step = 1};
    const UpdateRange range = buffers.range(0, kSize);
    const LambSquares squares = update_lamb_states(lamb, range);
    update_range(LambScaledUpdate{.update = lamb, .scale = lamb_trust_ratio(squares)}, range);
    update_range(LionUpdate{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0}, range);
  };
  Buffers one(UpdateElements::kFloat32, kSize);
  Buffers three(UpdateElements::kFloat32, kSize);
  run(1, one);
  run(3, three);
  EXPECT_TRUE(one.equal(three));
}

TEST(UpdateRange, LambSumsWhatNormsSay) {
  Buffers buffers(UpdateElements::kFloat32, 70001);
  const double expected = buffers.parameter.to(at::kDouble).square().sum().item().toDouble();
  // Without an average the update is the gradient's sign, of norm 1 an element, but for eps.
  for (const at::Tensor& state : buffers.states) state.zero_();
  const LambSquares squares = update_lamb_states(
      {.beta1 = 0, .beta2 = 0, .eps = 0, .weight_decay = 0, .step = 1}, buffers.range(0, 70001));
  EXPECT_NEAR(squares.parameter / expected, 1, 1e-6);
  EXPECT_NEAR(squares.update / 70001, 1, 1e-6);
  EXPECT_EQ(lamb_trust_ratio({.parameter = 4, .update = 16}), 0.5);
  EXPECT_EQ(lamb_trust_ratio({.parameter = 0, .update = 16}), 1);
  EXPECT_EQ(lamb_trust_ratio({.parameter = 4, .update = 0}), 1);
}

// ATen's kernels, whose bits Lockstep's have for float32.

/// Numbers of all sizes, NaN, infinities, zeros of both signs and subnormal numbers.
at::Tensor draw_numbers(std::mt19937& random, std::int64_t size) {
  constexpr float kSpecial[] = {0.0F,
                                -0.0F,
                                std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN(),
                                std::numeric_limits<float>::denorm_min(),
                                std::numeric_limits<float>::min(),
                                std::numeric_limits<float>::max()};
  const unsigned kind = random() % 3;
  at::Tensor numbers = at::empty({size}, at::kFloat);
  for (std::int64_t i = 0; i < size; ++i) {
    float& number = numbers.mutable_data_ptr<float>()[i];
    if (kind == 0) {
      number = std::normal_distribution<float>()(random);
    } else if (kind == 1 || random() % 8 != 0) {
      const auto bits = static_cast<std::uint32_t>(random());
      std::memcpy(&number, &bits, sizeof number);
      if (kind == 1 && !std::isfinite(number)) number = 1;
    } else {
      number = kSpecial[random() % std::size(kSpecial)];
    }
  }
  return numbers;
}

/// Which NaN it is, is the processor's choice.
::testing::AssertionResult same_numbers(const at::Tensor& actual, const at::Tensor& expected) {
  for (std::int64_t i = 0; i < actual.numel(); ++i) {
    const float a = actual.const_data_ptr<float>()[i];
    const float b = expected.const_data_ptr<float>()[i];
    if ((std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof a) == 0) continue;
    return ::testing::AssertionFailure()
           << "element " << i << " of " << actual.numel() << " is " << a << ", not " << b;
  }
  return ::testing::AssertionSuccess();
}

// Lockstep's kernels round as compilers have made ATen's for x86-64.
#if defined(__x86_64__)
#define NEEDS_X86_KERNELS() static_cast<void>(0)
#else
#define NEEDS_X86_KERNELS() GTEST_SKIP() << "needs an x86-64 processor, for ATen's kernels there"
#endif

class AtenBits : public ::testing::Test {
 protected:
  void SetUp() override { NEEDS_X86_KERNELS(); }

  template <class Value>
  Value one_of(std::initializer_list<Value> values) {
    return values.begin()[random_() % values.size()];
  }
  bool either() { return random_() % 2 == 0; }

  struct Numbers {
    at::Tensor parameter, gradient;
    Tensors states;
    Numbers copy() const {
      Numbers copied{parameter.clone(), gradient.clone(), {}};
      for (const at::Tensor& state : states) copied.states.push_back(state.clone());
      return copied;
    }
  };

  /// Calls `update(numbers, range)` and `expect(numbers)`, with `states` of them, on equal numbers.
  template <class Update, class Expect>
  void compare(const Update& update, std::size_t states, bool maximize, const Expect& expect) {
    const auto size =
        one_of<std::int64_t>({0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 131, 263});
    Numbers actual{draw_numbers(random_, size), draw_numbers(random_, size), {}};
    UpdateRange range{.dtype = at::kFloat,
                      .state_dtype = at::kFloat,
                      .parameter = actual.parameter.mutable_data_ptr(),
                      .gradient = actual.gradient.const_data_ptr(),
                      .states = {},
                      .elements = size,
                      .maximize = maximize};
    for (std::size_t k = 0; k < states; ++k) {
      actual.states.push_back(draw_numbers(random_, size));
      // Averages of squares; now and then what no step makes.
      if (random_() % 4 != 0) actual.states[k].abs_();
      range.states[k] = actual.states[k].mutable_data_ptr();
    }
    EXPECT_TRUE(has_own_kernel(update, range));
    Numbers expected = actual.copy();
    expect(expected);
    update_range(update, range);
    ASSERT_TRUE(same_numbers(actual.parameter, expected.parameter));
    for (std::size_t k = 0; k < states; ++k) {
      ASSERT_TRUE(same_numbers(actual.states[k], expected.states[k])) << "state " << k;
    }
  }

  // ATen divides parts of any size among threads.
  const Threads one_thread_{1};
  static constexpr int kCases = 3000;
  std::mt19937 random_{5};
};

TEST_F(AtenBits, OfAdam) {
  for (int i = 0; i < kCases && !HasFatalFailure(); ++i) {
    const AdamUpdate update{.lr = one_of({1e-3, 0.1, 1.0, 0.0}),
                            .beta1 = one_of({0.9, 0.5, 0.3, 0.0, 0.99}),
                            .beta2 = one_of({0.999, 0.5, 0.0, 0.95}),
                            .eps = one_of({1e-8, 1e-3, 0.0}),
                            .weight_decay = one_of({0.0, 0.01, 0.3}),
                            .is_decoupled = either(),
                            .step = one_of<std::int64_t>({1, 2, 17, 100'000})};
    const bool maximize = either();
    const std::size_t states = either() ? 3 : 2;
    SCOPED_TRACE(concat("case ", i, ": beta1 ", update.beta1, ", beta2 ", update.beta2, ", eps ",
                        update.eps, ", weight_decay ", update.weight_decay, ", decoupled ",
                        update.is_decoupled, ", step ", update.step, ", states ", states));
    compare(update, states, maximize, [&](Numbers& numbers) {
      const Tensors first = {numbers.parameter};
      const Tensors gradients = {numbers.gradient};
      const Tensors averages = {numbers.states[0]};
      const Tensors squares = {numbers.states[1]};
      const Tensors most = states == 3 ? Tensors{numbers.states[2]} : Tensors{};
      const Tensors steps = {at::scalar_tensor(static_cast<double>(update.step), at::kFloat)};
      if (update.is_decoupled) {
        at::_fused_adamw_(first, gradients, averages, squares, most, steps, update.lr, update.beta1,
                          update.beta2, update.weight_decay, update.eps, states == 3, maximize);
      } else {
        at::_fused_adam_(first, gradients, averages, squares, most, steps, update.lr, update.beta1,
                         update.beta2, update.weight_decay, update.eps, states == 3, maximize);
      }
    });
  }
}

TEST_F(AtenBits, OfSgd) {
  for (int i = 0; i < kCases && !HasFatalFailure(); ++i) {
    const SgdUpdate update{.lr = one_of({1e-3, 0.1, 1.0, 0.0}),
                           .momentum = one_of({0.0, 0.9, 0.5}),
                           .dampening = one_of({0.0, 0.1}),
                           .weight_decay = one_of({0.0, 0.01}),
                           .nesterov = either(),
                           .is_first_step = either()};
    const bool maximize = either();
    SCOPED_TRACE(concat("case ", i, ": momentum ", update.momentum, ", dampening ",
                        update.dampening, ", weight_decay ", update.weight_decay, ", nesterov ",
                        update.nesterov, ", first ", update.is_first_step));
    compare(update, update.momentum == 0 ? 0 : 1, maximize, [&](Numbers& numbers) {
      at::_fused_sgd_({numbers.parameter}, {numbers.gradient}, numbers.states, update.weight_decay,
                      update.momentum, update.lr, update.dampening, update.nesterov, maximize,
                      update.is_first_step);
    });
  }
}

TEST_F(AtenBits, OfAdagrad) {
  for (int i = 0; i < kCases && !HasFatalFailure(); ++i) {
    const AdagradUpdate update{.lr = one_of({1e-3, 0.1, 1.0}),
                               .lr_decay = one_of({0.0, 0.1}),
                               .weight_decay = one_of({0.0, 0.01}),
                               .eps = one_of({1e-10, 1e-3, 0.0}),
                               .step = one_of<std::int64_t>({1, 2, 100'000})};
    const bool maximize = either();
    SCOPED_TRACE(concat("case ", i, ": lr_decay ", update.lr_decay, ", weight_decay ",
                        update.weight_decay, ", eps ", update.eps, ", step ", update.step));
    compare(update, 1, maximize, [&](Numbers& numbers) {
      at::_fused_adagrad_({numbers.parameter}, {numbers.gradient}, {numbers.states[0]},
                          {at::scalar_tensor(static_cast<double>(update.step), at::kFloat)},
                          update.lr, update.lr_decay, update.weight_decay, update.eps, maximize);
    });
  }
}

// ATen chooses its instruction set when the first kernel runs: in another process.
TEST(AtenBitsElsewhere, OnEachInstructionSetOfATen) {
  NEEDS_X86_KERNELS();
  for (const auto& [set, capability] : {std::pair{InstructionSet::kPortable, "default"},
                                        std::pair{InstructionSet::kAvx2, "avx2"}}) {
    if (!is_supported(set)) continue;
    std::vector<std::string> environment = {concat("ATEN_CPU_CAPABILITY=", capability)};
    for (char** line = environ; *line != nullptr; ++line) {
      const std::string variable = *line;
      const bool is_replaced =
          variable.starts_with("GTEST_") || variable.starts_with("ATEN_CPU_CAPABILITY=");
      if (!is_replaced) environment.push_back(variable);
    }
    const pid_t pid = spawn_process({.path = "/proc/self/exe",
                                     .arguments = {"torch_tests", "--gtest_filter=AtenBits.*"},
                                     .environment = std::move(environment)});
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << capability;
  }
}

}  // namespace
}  // namespace lockstep::testing
