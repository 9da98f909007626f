#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/comm/kernels/element.h"
#include "lockstep/comm/reduce_op.h"

/// Converts c10d's tensors and operators to bytes, elements and ReduceOp.
/// Errors: UsageError for what shm does not support.
namespace lockstep::shm {

/// A tensor as bytes.
struct Piece {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  Element element = Element::kUint8;

  std::uint64_t elements() const { return bytes / element_bytes(element); }
};

ReduceOp op_of(const c10d::ReduceOp& op);

Piece piece_of(const at::Tensor& tensor);
std::vector<Piece> pieces_of(const std::vector<at::Tensor>& tensors);

/// Errors: UsageError if the reduction is not defined for these elements.
void check_reduction(Element element, ReduceOp op);

/// Splits a tensor into parts of `rows` rows, one per rank; equal parts if `rows` is empty.
std::vector<Piece> split(const at::Tensor& tensor, const std::vector<std::int64_t>& rows,
                         int ranks);

/// In equal parts of its elements, one per rank.
std::vector<Piece> split_flat(const at::Tensor& tensor, int ranks);

/// The one tensor of a list.
const at::Tensor& only(const std::vector<at::Tensor>& tensors);
/// The source or target of a call.
/// Errors: UsageError for a rank that does not exist, and for a root tensor other than 0.
int root_of(const char* operation, std::int64_t root_rank, std::int64_t root_tensor, int ranks);
void check_count(const std::vector<at::Tensor>& tensors, int ranks);
void check_same_size(const Piece& piece, const Piece& other);

}  // namespace lockstep::shm
