#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep::rpc::inline internal {

/// A message of LibTorch's distributed autograd, which is a pickle. It is parsed only in the form
/// that LibTorch writes, without an unpickler: nothing is executed.
struct GradientMessage {
  /// Indices of the gradients among the message's tensors, in order; may repeat.
  std::vector<std::size_t> tensors;
  std::int64_t context = 0;
  std::int64_t message = 0;
  bool retain_graph = false;
};

/// Parses a gradient message.
/// Errors: UsageError for any other bytes.
GradientMessage read_gradient_message(std::string_view pickle);

/// Parses a cleanup message: the context that a worker is to discard.
/// Errors: UsageError for any other bytes.
std::int64_t read_cleanup_message(std::string_view pickle);

}  // namespace lockstep::rpc::inline internal
