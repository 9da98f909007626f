#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "lockstep/base/error.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

class ReplicaThreads;

/// Names and defaults are those of torch.nn.DataParallel.
struct DataParallelOptions {
  /// One replica on each; the CPU may be named several times: {at::kCPU, at::kCPU}. Empty: all CUDA
  /// devices for a module that is on one, else as many times the CPU as an operator uses threads.
  std::vector<c10::Device> device_ids = {};
  /// Where the outputs are gathered: any device. Unset: the first of device_ids.
  std::optional<c10::Device> output_device = std::nullopt;
  /// The dimension of inputs and outputs in which a batch is split.
  std::int64_t dim = 0;
};

/// forward() failed in a replica. The message has the replica's number, its device and what was
/// thrown there, which is nested in it (std::rethrow_if_nested). Of several the first replica's.
class ReplicaFailed : public Error {
 public:
  ReplicaFailed(const std::string& message, int replica) : Error(message), replica_(replica) {}
  const char* name() const noexcept override { return "ReplicaFailed"; }
  int replica() const noexcept { return replica_; }

 private:
  int replica_;
};

/// How the arguments of one call are split: all tensors in as many chunks.
class InputScatter {
 public:
  InputScatter(std::vector<c10::Device> devices, std::int64_t dim)
      : devices_(std::move(devices)), dim_(dim) {}

  /// Learns of a tensor among the arguments. Errors: UsageError when it makes another number of
  /// chunks than those before, or has no dimension `dim`.
  void add(const at::Tensor& input);

  /// How many replicas there is work for.
  int replicas() const { return chunks_.value_or(1); }

  /// Its part for a replica, on the replica's device; all of it where it has no dimension.
  at::Tensor part(int replica, const at::Tensor& input) const;

 private:
  std::vector<c10::Device> devices_;
  std::int64_t dim_;
  std::optional<int> chunks_;
};

/// The part of DataParallel that does not depend on the module's type. Threads, lifetime, errors:
/// as DataParallel.
class ModuleReplicas {
 public:
  ModuleReplicas(std::shared_ptr<torch::nn::Module> module, const DataParallelOptions& options);
  ~ModuleReplicas();
  ModuleReplicas(const ModuleReplicas&) = delete;
  ModuleReplicas& operator=(const ModuleReplicas&) = delete;

  InputScatter scatter() const { return InputScatter(devices_, dim_); }

  /// Runs forward(i, replica) for the first `count` replicas, each in its thread.
  void run(int count, const std::function<void(int, torch::nn::Module&)>& forward);

  /// The outputs of all replicas as one; of several without dimension, a vector.
  at::Tensor gather(const std::vector<at::Tensor>& outputs) const;

 private:
  struct Replica;

  torch::nn::Module& prepare(int index);
  std::unique_ptr<Replica> make_replica(c10::Device device) const;
  void check_device() const;

  std::shared_ptr<torch::nn::Module> module_;
  std::vector<c10::Device> devices_;
  c10::Device output_device_;
  std::int64_t dim_;
  std::vector<std::unique_ptr<Replica>> replicas_;  // null until needed; the first is the module
  std::unique_ptr<ReplicaThreads> threads_;         // null until needed
};

}  // namespace lockstep
