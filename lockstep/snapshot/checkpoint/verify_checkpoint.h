#pragma once

#include "lockstep/snapshot/checkpoint.h"

namespace lockstep::inline internal {

/// What the bytes of a checkpoint were compared with.
enum class VerifiedBy {
  kChecksum,  ///< a checksum of every file
  kCrc,       ///< the CRC of each record of torch.save
  kNothing,   ///< safetensors without a list of checksums, torch.save without CRCs
};

/// Compares the bytes of a checkpoint with the checksums that it has, or that lie beside it, in the
/// memory of a buffer. Of torch.distributed.checkpoint without a list, only the pieces of the part.
/// Errors: CorruptFile that names the file; SystemError.
VerifiedBy verify_checkpoint(const CheckpointReader& checkpoint,
                             CheckpointPart part = CheckpointPart::kModel);

}  // namespace lockstep::inline internal
