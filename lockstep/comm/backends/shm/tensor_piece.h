#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/comm/kernels/element.h"
#include "lockstep/comm/reduce_op.h"

/// Tensors and operators as the core sees them: bytes. Errors: UsageError for what it cannot take.
namespace lockstep::shm {

struct Piece {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  Element element = Element::kUint8;

  std::uint64_t elements() const { return bytes / element_bytes(element); }
};

ReduceOp op_of(const c10d::ReduceOp& op);

Piece piece_of(const at::Tensor& tensor);
std::vector<Piece> pieces_of(const std::vector<at::Tensor>& tensors);

/// Whether the reduction is defined for these elements.
void check_reduction(Element element, ReduceOp op);

/// A tensor in parts of so many rows, one a rank; in equal parts when none are given.
std::vector<Piece> split(const at::Tensor& tensor, const std::vector<std::int64_t>& rows,
                         int ranks);

/// The one tensor of a list.
const at::Tensor& only(const std::vector<at::Tensor>& tensors);
/// The source or target of a call, whose options name one tensor of that rank, too.
int root_of(const char* operation, std::int64_t root_rank, std::int64_t root_tensor, int ranks);
void check_count(const std::vector<at::Tensor>& tensors, int ranks);
void check_same_size(const Piece& piece, const Piece& other);

}  // namespace lockstep::shm
