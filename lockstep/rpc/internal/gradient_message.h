#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep::rpc::inline internal {

/// What LibTorch's distributed autograd sends from worker to worker, as pickles. They are read here
/// by the one form that LibTorch gives them, and by no unpickler: nothing that comes is executed.
struct GradientMessage {
  std::vector<std::size_t>
      tensors;  ///< which of the message's are the gradients, in order, some twice
  std::int64_t context = 0;
  std::int64_t message = 0;
  bool retain_graph = false;
};

/// Errors: UsageError for any other bytes.
GradientMessage read_gradient_message(std::string_view pickle);

/// The context that a worker is to forget. Errors: UsageError for any other bytes.
std::int64_t read_cleanup_message(std::string_view pickle);

}  // namespace lockstep::rpc::inline internal
