#include "lockstep/comm/backends/shm/tensor_piece.h"

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/element_of.h"

namespace lockstep::shm {
namespace {

Element checked_element_of(const at::Tensor& tensor) {
  if (const auto element = element_of(tensor.scalar_type())) return *element;
  throw UsageError(
      concat("backend shm does not support dtype ", c10::toString(tensor.scalar_type())));
}

}  // namespace

ReduceOp op_of(const c10d::ReduceOp& op) {
  // Numbered alike: c10d_backend.cpp.
  if (op.op_ <= c10d::ReduceOp::BXOR) return static_cast<ReduceOp>(op.op_);
  throw UsageError(
      "backend shm does not support this reduce op; use SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or "
      "BXOR");
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
  if (tensors.size() != 1) {
    throw UsageError(concat("backend shm takes one tensor per call, not ", tensors.size()));
  }
  return tensors[0];
}

void check_count(const std::vector<at::Tensor>& tensors, int ranks) {
  if (tensors.size() == static_cast<std::size_t>(ranks)) return;
  throw UsageError(
      concat("one tensor for each of ", ranks, " ranks is needed, not ", tensors.size()));
}

int root_of(const char* operation, std::int64_t root_rank, std::int64_t root_tensor, int ranks) {
  if (root_rank < 0 || root_rank >= ranks) {
    throw UsageError(
        concat(operation, ": root ", root_rank, " is not a rank of this group of ", ranks));
  }
  if (root_tensor != 0) {
    throw UsageError(concat(operation, ": root tensor ", root_tensor,
                            "; it must be 0, as each rank gives one tensor"));
  }
  return static_cast<int>(root_rank);
}

void check_reduction(Element element, ReduceOp op) {
  if (op == ReduceOp::kAvg && !is_floating_point(element)) {
    throw UsageError(concat("AVG is not defined for ", element_name(element)));
  }
  const bool bitwise = op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
  if (bitwise && is_floating_point(element)) {
    throw UsageError(concat("a bitwise reduction is not defined for ", element_name(element)));
  }
}

Piece piece_of(const at::Tensor& tensor) {
  if (!tensor.defined()) throw UsageError("backend shm does not support undefined tensors");
  if (tensor.layout() != at::kStrided) {
    throw UsageError("backend shm takes dense tensors only; pass a to_dense() copy");
  }
  if (!tensor.is_cpu() || !tensor.is_contiguous()) {
    throw UsageError(concat("backend shm takes contiguous tensors on the CPU only, not one on ",
                            tensor.device().str()));
  }
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes(), checked_element_of(tensor)};
}

std::vector<Piece> pieces_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Piece> pieces;
  for (const at::Tensor& tensor : tensors) pieces.push_back(piece_of(tensor));
  return pieces;
}

namespace {

void check_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& rows, int ranks) {
  const std::int64_t all_rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (rows.empty()) {
    if (all_rows % ranks == 0) return;
    throw UsageError(
        concat("a tensor of ", all_rows, " rows cannot be split evenly over ", ranks, " ranks"));
  }
  if (rows.size() != static_cast<std::size_t>(ranks)) {
    throw UsageError(
        concat("one split for each of ", ranks, " ranks is needed, not ", rows.size()));
  }
  std::int64_t left = all_rows;
  for (const std::int64_t part : rows) {
    if (part < 0) throw UsageError(concat("a split of ", part, " rows"));
    if (part > left) left = -1;
    if (left < 0) break;
    left -= part;
  }
  if (left != 0)
    throw UsageError(concat("the splits do not sum to the ", all_rows, " rows of the tensor"));
}

}  // namespace

std::vector<Piece> split(const at::Tensor& tensor, const std::vector<std::int64_t>& rows,
                         int ranks) {
  const Piece whole = piece_of(tensor);
  check_rows(tensor, rows, ranks);
  const auto all_rows = static_cast<std::uint64_t>(tensor.dim() == 0 ? 1 : tensor.size(0));
  const std::uint64_t row_bytes = all_rows == 0 ? 0 : whole.bytes / all_rows;
  std::vector<Piece> parts;
  std::uint64_t offset = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::uint64_t part_rows =
        rows.empty() ? all_rows / static_cast<std::uint64_t>(ranks)
                     : static_cast<std::uint64_t>(rows[static_cast<std::size_t>(rank)]);
    parts.push_back({whole.data + offset, part_rows * row_bytes, whole.element});
    offset += part_rows * row_bytes;
  }
  return parts;
}

std::vector<Piece> split_flat(const at::Tensor& tensor, int ranks) {
  piece_of(tensor);  // Checks it.
  return shm::split(tensor.view({-1}), {}, ranks);
}

void check_same_size(const Piece& piece, const Piece& other) {
  if (piece.bytes == other.bytes && piece.element == other.element) return;
  throw UsageError(concat("a tensor of ", piece.elements(), " ", element_name(piece.element),
                          " elements does not match one of ", other.elements(), " ",
                          element_name(other.element), "; use the same dtype and size"));
}

}  // namespace lockstep::shm
