#include "lockstep/snapshot/checkpoint/verify_checkpoint.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/checkpoint/checksum_list.h"
#include "lockstep/snapshot/checkpoint/stored_tensors.h"
#include "lockstep/snapshot/internal/checksum.h"
#include "lockstep/snapshot/pickle/zip_reader.h"
#include "lockstep/snapshot/sharded/sharded_snapshot.h"

namespace lockstep::inline internal {
namespace {

/// The first record without its CRC.
const ZipRecord* damaged_record(const ZipReader& archive) {
  const auto& records = archive.records();
  const auto found = std::ranges::find_if(
      records, [&](const auto& record) { return !archive.is_intact(record.second); });
  return found == records.end() ? nullptr : &found->second;
}

VerifiedBy verify_records(const ReadableFile& file) {
  const ZipReader archive(file);
  if (const ZipRecord* const damaged = damaged_record(archive)) {
    throw CorruptFile(concat("verify ", file.path().string(), ": record '", damaged->name,
                             "' does not have the CRC that the archive states; take another copy "
                             "(`lockstep snapshot verify` names its tensors)"));
  }
  return archive.has_crcs() ? VerifiedBy::kCrc : VerifiedBy::kNothing;
}

/// Each piece is an archive.
VerifiedBy verify_pieces(const StoredTensors& stored) {
  bool have_crcs = true;
  for (const StoredTensor& tensor : stored.tensors) {
    for (const StoredPiece& piece : tensor.pieces) {
      const ReadableFile file = stored.files.open(piece.file);
      locate_piece(tensor, piece, file);
      const ReadableFile archive_file = file.part(piece.offset_bytes, piece.size_bytes);
      const ZipReader archive(archive_file);
      if (damaged_record(archive) != nullptr) {
        refuse_piece(file, tensor, piece, "does not have the CRC that the archive states");
      }
      have_crcs &= archive.has_crcs();
    }
  }
  return have_crcs ? VerifiedBy::kCrc : VerifiedBy::kNothing;
}

}  // namespace

VerifiedBy verify_checkpoint(const CheckpointReader& checkpoint, CheckpointPart part) {
  const std::filesystem::path& path = checkpoint.path();
  switch (checkpoint.format()) {
    case CheckpointFormat::kShardedSnapshot:
      verify_sharded(path);
      return VerifiedBy::kChecksum;
    case CheckpointFormat::kSnapshot:
    case CheckpointFormat::kTorchSave: {
      const ReadableFile file(path);
      return verify_checksum(file) ? VerifiedBy::kChecksum : verify_records(file);
    }
    case CheckpointFormat::kDistributed:
      if (verify_checksum_list(path)) return VerifiedBy::kChecksum;
      return verify_pieces(open_distributed(path, part));
    case CheckpointFormat::kSafetensors:
    case CheckpointFormat::kShardedSafetensors:
      break;
  }
  return verify_checksum_list(path) ? VerifiedBy::kChecksum : VerifiedBy::kNothing;
}

}  // namespace lockstep::inline internal
