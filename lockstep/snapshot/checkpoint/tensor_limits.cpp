#include "lockstep/snapshot/checkpoint/tensor_limits.h"

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

/// What a reader keeps of a tensor beside its name, which it has three times, and its dimensions,
/// which it has five times.
constexpr std::uint64_t kKeptTensorBytes = 512;
constexpr std::size_t kNameBeginBytes = 40;

}  // namespace

void TensorLimits::check(const std::string& name, const at::Tensor& tensor) {
  if (name.size() > kMaxTensorNameBytes) {
    throw UsageError(concat("read ", file_.source.string(), ": the name of tensor '",
                            name.substr(0, kNameBeginBytes), "…' has ", name.size(),
                            " bytes, and at most ", kMaxTensorNameBytes,
                            " are supported; save it by a shorter one"));
  }
  const auto dimensions = static_cast<std::uint64_t>(tensor.dim());
  if (!budget_.spend(kKeptTensorBytes + 3 * name.size() + 5 * dimensions * sizeof(std::int64_t))) {
    throw CorruptFile(concat("read ", file_.source.string(), ": at tensor '", name,
                             "' its names and shapes take too much memory for its size; it is "
                             "damaged: take another copy"));
  }
  if (tensor.nbytes() > file_.bytes) {
    throw UsageError(concat("read ", file_.source.string(), ": tensor '", name, "' has ",
                            tensor.nbytes(),
                            " bytes, more than its file; save it as a contiguous one"));
  }
}

}  // namespace lockstep::inline internal
