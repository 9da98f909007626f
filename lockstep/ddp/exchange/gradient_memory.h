#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

/// Lets autograd write gradients of large parameters directly into memory that ranks share, where
/// peers read them in place. While it is open, CPU allocations of the thread that opened it come
/// from there if their size equals that of one of the gradients; if that memory is short, from the
/// ordinary allocator. c10::SetAllocator installs it below all tensors, once per process, on top of
/// the previous allocator.
/// Threads: open() on the thread that will run backward(); everything else on any.
/// Lifetime: tensors allocated there may outlive this object and its group.
class GradientMemory {
 public:
  /// Creates a tensor of `bytes` bytes in shared memory.
  /// Errors: Error if it is short.
  using Allocate = std::function<at::Tensor(std::int64_t bytes)>;

  /// `gradient_bytes`: size of each large parameter's gradient.
  GradientMemory(Allocate allocate, std::vector<std::size_t> gradient_bytes);
  ~GradientMemory();
  GradientMemory(const GradientMemory&) = delete;
  GradientMemory& operator=(const GradientMemory&) = delete;

  /// Call it at the end of a forward pass; close() at the end of the backward pass or at the next
  /// forward.
  void open();
  void close();

  struct Source;

 private:
  std::shared_ptr<Source> source_;
};

}  // namespace lockstep::inline internal
