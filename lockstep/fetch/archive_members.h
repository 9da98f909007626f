#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

struct ArchiveMember {
  /// As the archive has it: "skimage/data/coffee.png".
  std::string path;
  /// What the file is called in the target folder: no path.
  std::string file_name;
};

/// True unless the path stays below the folder that it is unpacked in: absolute, or with "..".
bool leaves_folder(const std::string& member_path);

/// Unpacks members of a zip archive (.whl) or a gzipped tar archive, and nothing else of it, into
/// `folder`. Errors: CorruptFile naming archive and member when the archive cannot be read, a
/// member is missing, is there twice or is no regular file, or when any path in it leaves the
/// folder, wanted or not: whoever made such an archive is not to be trusted with the rest;
/// SystemError when a file cannot be written or is there already.
void extract_members(const std::filesystem::path& archive,
                     const std::vector<ArchiveMember>& members,
                     const std::filesystem::path& folder);

}  // namespace lockstep
