#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/process_group_state.h"

/// Argument checks of collectives.
/// Errors: UsageError with the operation, the rank and the invalid argument.
namespace lockstep::inline internal {

/// The call, for errors.
struct CallSite {
  const char* operation;
  const ProcessGroup::State& group;
};

/// Throws the UsageError.
template <class... Parts>
[[noreturn]] void refuse(const CallSite& call, const Parts&... parts) {
  throw UsageError(concat(call.operation, " of group '", call.group.name, "' on rank ",
                          call.group.rank, ": ", parts...));
}

void check_tensor(const CallSite& call, const char* argument, const at::Tensor& tensor);

/// One tensor per rank, each of `like`'s dtype and number of elements.
void check_one_per_rank(const CallSite& call, const char* argument,
                        const std::vector<at::Tensor>& tensors, const at::Tensor& like);

/// On `rank` as check_one_per_rank; no tensors on the others.
void check_only_on(const CallSite& call, int rank, const char* argument,
                   const std::vector<at::Tensor>& tensors, const at::Tensor& like);

void check_timeout(const CallSite& call, std::chrono::milliseconds timeout);

void check_rank(const CallSite& call, const char* argument, int rank);

/// A rank of the group other than this one.
void check_peer(const CallSite& call, const char* argument, int rank);

void check_same_dtype(const CallSite& call, const at::Tensor& output, const at::Tensor& input);

/// `large` has world_size() times the elements of `small`.
void check_scaled(const CallSite& call, const char* large_name, const at::Tensor& large,
                  const char* small_name, const at::Tensor& small);

/// The operation exists for the dtype: no average of integers, no bitwise operation on floats.
void check_reduce_op(const CallSite& call, ReduceOp op, at::ScalarType dtype);

}  // namespace lockstep::inline internal
