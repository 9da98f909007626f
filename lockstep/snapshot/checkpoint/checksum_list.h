#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "lockstep/snapshot/internal/checksum.h"

/// Checksums of files whose format has none, in a file beside them, in the format of `xxh128sum`:
/// 32 hexadecimal digits, two spaces, the name.
namespace lockstep::inline internal {

/// The list's path: in a directory (or beside an index in it) checksums.xxh3, else beside the file.
std::filesystem::path checksum_list_path(const std::filesystem::path& path);

/// Writes a list atomically.
/// Errors: as AtomicFile.
void write_checksum_list(const std::filesystem::path& list,
                         const std::map<std::string, FileDigest>& files);

/// Verifies every file that the list names; for a directory without a list, by the list of its
/// model.safetensors. False: there is no list.
/// Errors: CorruptFile that names the file that differs, and for a damaged list; SystemError.
bool verify_checksum_list(const std::filesystem::path& path);

}  // namespace lockstep::inline internal
