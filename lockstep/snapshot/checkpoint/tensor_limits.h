#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/snapshot/pickle/pickle_nodes.h"

namespace lockstep::inline internal {

/// Longest name of a tensor: in a file of torch.save it may cost less than its bytes.
inline constexpr std::size_t kMaxTensorNameBytes = 4096;

/// Limits on the named tensors of a file of torch.save: a pickle refers to a long key, and to a
/// tensor of many dimensions, as often as it likes, and a tensor may show one number any number of
/// times.
class TensorLimits {
 public:
  struct File {
    std::filesystem::path source = {};
    std::uint64_t bytes = 0;
    std::uint64_t pickle_bytes = 0;  ///< of them
  };

  explicit TensorLimits(File file) : file_(std::move(file)), budget_(file_.pickle_bytes) {}

  /// Call it with each tensor before its name is copied.
  /// Errors: UsageError for a name or tensor that is too large; CorruptFile if all together are.
  void check(const std::string& name, const at::Tensor& tensor);

 private:
  File file_;
  PickleBudget budget_;
};

}  // namespace lockstep::inline internal
