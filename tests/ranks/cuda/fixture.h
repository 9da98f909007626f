#pragma once

#include <cstdint>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/module.h>

#include "tests/ranks/fixture.h"

namespace lockstep::testing {

/// Tests with tensors on a CUDA device, which are skipped where there is none. They run over nccl,
/// over gloo, which stages such tensors on the host, and as one rank.
class CudaTest : public Conformance {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "needs a CUDA device";
    // A group of one rank has no backend, and takes tensors of any device.
    takes_cuda_ =
        world_size_ == 1 || group_.backend_name() == "nccl" || group_.backend_name() == "gloo";
  }

  /// Keeps the device busy for tens of milliseconds: results that are queued behind it and read
  /// too early are wrong.
  void delay() const {
    at::Tensor values = at::full({2048, 2048}, 1e-3, on_device());
    for (int i = 0; i < 40; ++i) values = values.matmul(values).mul_(0.5);
  }

  /// A formula of rank and index, the same on the CPU and the device.
  at::Tensor wave(std::int64_t rows, std::int64_t columns, double seed) const {
    return at::sin(at::arange(rows * columns, at::kDouble) * 0.37 + seed).view({rows, columns});
  }

  at::TensorOptions on_device(at::ScalarType dtype = at::kFloat) const {
    return at::TensorOptions(dtype).device(device_);
  }

  static void copy_state(const torch::nn::Module& source, torch::nn::Module& target) {
    const at::NoGradGuard no_grad;
    for (const auto& item : source.named_parameters()) {
      target.named_parameters()[item.key()].copy_(item.value());
    }
    for (const auto& item : source.named_buffers()) {
      target.named_buffers()[item.key()].copy_(item.value());
    }
  }

  /// `tolerance`: relative to the largest element.
  static ::testing::AssertionResult is_near(const at::Tensor& actual, const at::Tensor& expected,
                                            double tolerance) {
    const at::Tensor a = actual.detach().cpu().to(at::kDouble);
    const at::Tensor b = expected.detach().cpu().to(at::kDouble);
    if (a.sizes() != b.sizes()) return ::testing::AssertionFailure() << a.sizes() << b.sizes();
    const double scale = b.numel() == 0 ? 1 : b.abs().max().item<double>() + 1e-30;
    const double error = b.numel() == 0 ? 0 : (a - b).abs().max().item<double>();
    if (error <= tolerance * scale) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "differs by " << error << " of " << scale;
  }

  const c10::Device device_{at::kCUDA, 0};
  bool takes_cuda_ = false;
};

}  // namespace lockstep::testing

/// Skips the rest of a test where the backend takes no CUDA tensors.
#define NEEDS_CUDA_TENSORS() \
  if (!takes_cuda_) GTEST_SKIP() << "needs a backend that takes CUDA tensors"
