#include "lockstep/comm/internal/tensor_check.h"

#include <algorithm>
#include <array>

#include <c10/core/ScalarType.h>

namespace lockstep::inline internal {
namespace {

constexpr std::array kExchangeable = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt,
                                      at::kLong,  at::kChar,   at::kByte, at::kBool};

}  // namespace

void check_tensor(const CallSite& call, const char* argument, const at::Tensor& tensor) {
  if (!tensor.defined()) refuse(call, argument, " is an undefined tensor");
  if (std::ranges::count(kExchangeable, tensor.scalar_type()) == 0) {
    refuse(call, argument, " has dtype ", c10::toString(tensor.scalar_type()),
           "; exchange float32, float64, float16, bfloat16, int32, int64, int8, uint8 or bool");
  }
  if (tensor.layout() != at::kStrided || !tensor.is_contiguous()) {
    refuse(call, argument, " is not dense and contiguous; pass its contiguous() copy");
  }
  const bool takes_device =
      tensor.is_cuda() ? !call.group.backend || call.group.backend->takes_cuda()
                       : tensor.is_cpu() && (!call.group.backend || call.group.device.is_cpu());
  if (!takes_device) {
    refuse(call, argument, " is on ", tensor.device().str(), ", but backend '",
           call.group.backend_name, "' takes tensors on ", call.group.device.str(),
           "; move it there, or choose another backend");
  }
}

void check_one_per_rank(const CallSite& call, const char* argument,
                        const std::vector<at::Tensor>& tensors, const at::Tensor& like) {
  if (tensors.size() != static_cast<std::size_t>(call.group.world_size)) {
    refuse(call, argument, " holds ", tensors.size(), " tensors, one for each of ",
           call.group.world_size, " ranks is needed");
  }
  for (const at::Tensor& tensor : tensors) {
    check_tensor(call, argument, tensor);
    if (tensor.scalar_type() != like.scalar_type() || tensor.numel() != like.numel()) {
      refuse(call, "a tensor of ", argument, " has ", tensor.numel(), " elements of ",
             c10::toString(tensor.scalar_type()), ", the other side has ", like.numel(), " of ",
             c10::toString(like.scalar_type()));
    }
  }
}

void check_only_on(const CallSite& call, int rank, const char* argument,
                   const std::vector<at::Tensor>& tensors, const at::Tensor& like) {
  if (call.group.rank == rank) {
    check_one_per_rank(call, argument, tensors, like);
  } else if (!tensors.empty()) {
    refuse(call, argument, " must be empty except on rank ", rank);
  }
}

void check_timeout(const CallSite& call, std::chrono::milliseconds timeout) {
  if (timeout <= std::chrono::milliseconds(0)) {
    refuse(call, "a timeout of ", timeout.count(), " ms is not positive");
  }
}

void check_rank(const CallSite& call, const char* argument, int rank) {
  if (rank < 0 || rank >= call.group.world_size) {
    refuse(call, argument, "=", rank, " is not a rank of this group (0 to ",
           call.group.world_size - 1, ")");
  }
}

void check_peer(const CallSite& call, const char* argument, int rank) {
  check_rank(call, argument, rank);
  if (rank == call.group.rank)
    refuse(call, argument, "=", rank, " is this rank itself; copy instead");
}

void check_same_dtype(const CallSite& call, const at::Tensor& output, const at::Tensor& input) {
  if (output.scalar_type() != input.scalar_type()) {
    refuse(call, "output has dtype ", c10::toString(output.scalar_type()), ", input has ",
           c10::toString(input.scalar_type()));
  }
}

void check_scaled(const CallSite& call, const char* large_name, const at::Tensor& large,
                  const char* small_name, const at::Tensor& small) {
  if (large.numel() != small.numel() * call.group.world_size) {
    refuse(call, large_name, " has ", large.numel(), " elements; with ", call.group.world_size,
           " ranks and ", small.numel(), " elements in ", small_name, " it needs ",
           small.numel() * call.group.world_size);
  }
}

void check_reduce_op(const CallSite& call, ReduceOp op, at::ScalarType dtype) {
  const bool bitwise = op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
  const bool floating = at::isFloatingType(dtype);
  if ((bitwise && floating) || (op == ReduceOp::kAvg && !floating)) {
    refuse(call, name_of(op), " is not defined for ", c10::toString(dtype));
  }
}

}  // namespace lockstep::inline internal
