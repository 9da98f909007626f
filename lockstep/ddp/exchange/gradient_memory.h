#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

/// Has autograd write the gradients of large parameters straight into memory that ranks share, so
/// that peers read them where they lie. While it is open, allocations of CPU memory by the
/// thread that opened it are served from there if they are of exactly the size of one of the
/// gradients; when that memory is short, from the ordinary one. What was allocated so may outlive
/// this object and its group. Placed below every tensor by c10::SetAllocator, once in a process, on
/// top of the allocator that was there.
/// Threads: open() on the thread that will run backward(); everything else on any.
class GradientMemory {
 public:
  /// Makes a tensor of so many bytes in that memory; Error when it is short.
  using Allocate = std::function<at::Tensor(std::int64_t bytes)>;

  /// `gradient_bytes`: of each large parameter's gradient.
  GradientMemory(Allocate allocate, std::vector<std::size_t> gradient_bytes);
  ~GradientMemory();
  GradientMemory(const GradientMemory&) = delete;
  GradientMemory& operator=(const GradientMemory&) = delete;

  /// From the end of a forward pass to the end of the backward pass, or to the next forward.
  void open();
  void close();

  struct Source;

 private:
  std::shared_ptr<Source> source_;
};

}  // namespace lockstep::inline internal
