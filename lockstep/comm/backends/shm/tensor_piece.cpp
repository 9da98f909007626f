#include "lockstep/comm/backends/shm/tensor_piece.h"

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"

namespace lockstep::shm {
namespace {

Element element_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return Element::kFloat32;
    case at::kDouble:
      return Element::kFloat64;
    case at::kHalf:
      return Element::kFloat16;
    case at::kBFloat16:
      return Element::kBFloat16;
    case at::kChar:
      return Element::kInt8;
    case at::kShort:
      return Element::kInt16;
    case at::kInt:
      return Element::kInt32;
    case at::kLong:
      return Element::kInt64;
    case at::kByte:
      return Element::kUint8;
    case at::kBool:
      return Element::kBool;
    default:
      throw UsageError(concat("the backend shm exchanges no tensors of dtype ",
                              c10::toString(tensor.scalar_type())));
  }
}

}  // namespace

ReduceOp op_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::kAvg;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::kProduct;
    case c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case c10d::ReduceOp::BAND:
      return ReduceOp::kBand;
    case c10d::ReduceOp::BOR:
      return ReduceOp::kBor;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::kBxor;
    default:
      throw UsageError(
          "the backend shm has no such reduction; use SUM, AVG, PRODUCT, MIN, MAX, "
          "BAND, BOR or BXOR");
  }
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
  if (tensors.size() != 1) {
    throw UsageError(concat("the backend shm takes one tensor a call, not ", tensors.size()));
  }
  return tensors[0];
}

void check_count(const std::vector<at::Tensor>& tensors, int ranks) {
  if (tensors.size() == static_cast<std::size_t>(ranks)) return;
  throw UsageError(
      concat("one tensor for each of ", ranks, " ranks is needed, not ", tensors.size()));
}

Piece piece_of(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.is_contiguous()) {
    throw UsageError(concat("the backend shm takes contiguous tensors on the CPU, not one on ",
                            tensor.device().str()));
  }
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes(), element_of(tensor)};
}

std::vector<Piece> pieces_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Piece> pieces;
  for (const at::Tensor& tensor : tensors) pieces.push_back(piece_of(tensor));
  return pieces;
}

// `whole` in parts of the given numbers of rows, or in equal ones when none are given.
std::vector<Piece> split(const at::Tensor& tensor, const std::vector<std::int64_t>& rows,
                         int ranks) {
  const Piece whole = piece_of(tensor);
  const std::int64_t all_rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const std::uint64_t row_bytes =
      all_rows == 0 ? 0 : whole.bytes / static_cast<std::uint64_t>(all_rows);
  std::vector<Piece> parts;
  std::uint64_t offset = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::uint64_t bytes =
        rows.empty() ? whole.bytes / static_cast<std::uint64_t>(ranks)
                     : static_cast<std::uint64_t>(rows[static_cast<std::size_t>(rank)]) * row_bytes;
    parts.push_back({whole.data + offset, bytes, whole.element});
    offset += bytes;
  }
  if (offset != whole.bytes) {
    throw UsageError(concat("the splits make ", offset, " bytes of a tensor of ", whole.bytes));
  }
  return parts;
}

void check_same_size(const Piece& piece, const Piece& other) {
  if (piece.bytes == other.bytes && piece.element == other.element) return;
  throw UsageError(concat("a tensor of ", piece.elements(), " ", element_name(piece.element),
                          " elements stands where one of ", other.elements(), " ",
                          element_name(other.element), " is needed"));
}

}  // namespace lockstep::shm
