#include "lockstep/snapshot/checkpoint/stored_tensors.h"

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/internal/saved_file.h"

namespace lockstep::inline internal {

void refuse_piece(const ReadableFile& file, const StoredTensor& tensor, const StoredPiece& piece,
                  const std::string& what) {
  throw CorruptFile(concat("read ", file.path().string(), ": piece ", box_text(piece.box), " of '",
                           tensor.name, "' ", what, "; take another copy"));
}

StoredPiece locate_piece(const StoredTensor& tensor, const StoredPiece& piece,
                         const ReadableFile& file) {
  if (piece.strides) return piece;
  const Outline outline = load_outline(file.part(piece.offset_bytes, piece.size_bytes));
  if (!outline.tree.isTensor()) refuse_piece(file, tensor, piece, "is no tensor in its file");
  const at::Tensor& found = outline.tree.toTensor();
  if (found.scalar_type() != tensor.dtype || found.sizes() != at::IntArrayRef(piece.box.sizes)) {
    refuse_piece(file, tensor, piece, "has another dtype or shape in its file");
  }
  const ZipRecord& record = outline.records.at(found.storage().unsafeGetStorageImpl());
  const auto skipped = static_cast<std::uint64_t>(found.storage_offset()) * found.element_size();
  StoredPiece raw = piece;
  raw.offset_bytes += record.offset_bytes + skipped;
  raw.size_bytes = record.size_bytes - skipped;
  raw.strides = found.strides().vec();
  if (found.nbytes() == record.size_bytes && skipped == 0 && record.crc32 != 0) {
    raw.crc32 = record.crc32;
  }
  return raw;
}

}  // namespace lockstep::inline internal
