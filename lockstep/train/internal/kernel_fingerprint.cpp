#include "lockstep/train/internal/kernel_fingerprint.h"

#include <cstdint>
#include <limits>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/version.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/snapshot/internal/checksum.h"

namespace lockstep::inline internal {
namespace {

// LibTorch sets it, and does not tell.
bool flushes_denormals() {
  const volatile float denormal = std::numeric_limits<float>::denorm_min();
  const volatile float product = denormal * 1.0F;
  return product == 0;
}

// From -1 to 1, by operations that round alike everywhere.
at::Tensor values(at::IntArrayRef shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) elements *= size;
  return at::arange(elements, at::kLong)
      .mul_(7919)
      .remainder_(2001)
      .sub_(1000)
      .to(at::kFloat)
      .div_(1000)
      .view(shape);
}

// Libraries choose kernels by shape, layout and dtype: some of each.
std::vector<at::Tensor> results() {
  std::vector<at::Tensor> made;
  struct Product {
    std::int64_t rows, inner, columns;
  };
  for (const auto [rows, inner, columns] : {Product{5, 7, 3}, {33, 65, 17}, {128, 192, 96}}) {
    const at::Tensor left = values({rows, inner});
    const at::Tensor right = values({inner, columns});
    made.push_back(at::matmul(left, right));
    made.push_back(at::matmul(values({inner, rows}).t(), right));
    made.push_back(at::matmul(left, values({columns, inner}).t()));
    made.push_back(at::matmul(left.to(at::kBFloat16), right.to(at::kBFloat16)));
  }
  made.push_back(at::matmul(values({4, 16, 24}), values({4, 24, 16})));
  made.push_back(at::conv2d(values({2, 8, 14, 14}), values({16, 8, 3, 3}), {}, 1, 1));
  const at::Tensor line = values({9, 331});
  for (const at::Tensor& one : {at::exp(line), at::tanh(line), at::log(line.abs().add(0.1)),
                                at::rsqrt(line.abs().add(0.1)), at::softmax(line, 1)}) {
    made.push_back(one);
    made.push_back(at::sum(one));
  }
  return made;
}

std::uint64_t hash_of_results() {
  const c10::NoGradGuard no_gradients;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  std::vector<std::uint64_t> hashes;
  for (const at::Tensor& result : results()) {
    const at::Tensor dense = result.contiguous();
    hashes.push_back(hash_bytes(dense.const_data_ptr(), dense.nbytes()));
  }
  return hash_bytes(hashes.data(), hashes.size() * sizeof(std::uint64_t));
}

// A save asks for them as well, and must not wait for matrix products.
struct Known {
  Mutex mutex;
  std::string settings LOCKSTEP_GUARDED_BY(mutex);
  std::uint64_t results LOCKSTEP_GUARDED_BY(mutex) = 0;
};

}  // namespace

std::string kernel_fingerprint() {
  static auto* const known = new Known();  // never destroyed
  const auto& context = at::globalContext();
  const std::string settings =
      concat("compute_threads=", at::get_num_threads(), " LibTorch=", TORCH_VERSION,
             " kernels=", at::get_cpu_capability(), " mkldnn=", context.userEnabledMkldnn(),
             " deterministic=", context.deterministicAlgorithms(),
             " float32_matmul_precision=", static_cast<int>(context.float32MatmulPrecision()),
             " flush_denormal=", flushes_denormals());
  const MutexLock lock(known->mutex);
  if (known->settings != settings) {
    known->results = hash_of_results();
    known->settings = settings;
  }
  return concat(settings, " results=", known->results);
}

}  // namespace lockstep::inline internal
