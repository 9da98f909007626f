#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "lockstep/snapshot/internal/checksum.h"

/// Checksums of files whose format has no room for them, in a file beside them, by `xxh128sum`'s
/// format: 32 hexadecimal digits, two spaces, the name.
namespace lockstep::inline internal {

/// Of a folder, or the index in it, the file in it; else the one beside the file.
std::filesystem::path checksum_list_path(const std::filesystem::path& path);

/// Atomically. Errors: as AtomicFile.
void write_checksum_list(const std::filesystem::path& list,
                         const std::map<std::string, FileDigest>& files);

/// Reads every file that the list names; of a folder without one, the list of its
/// model.safetensors. False: there is no list. Errors: CorruptFile naming the file that is not the
/// one that was written, and for a damaged list; SystemError.
bool verify_checksum_list(const std::filesystem::path& path);

}  // namespace lockstep::inline internal
