#include "tools/snapshot/side_files.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/readable_file.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

/// Of all files: they are in memory at once. The largest tokenizers have 40 MB.
constexpr std::uint64_t kMostBytes = std::uint64_t{128} << 20;
/// Of a name. Published models have a dozen files of such names.
constexpr std::size_t kMostNameBytes = 128;
constexpr std::size_t kMostFiles = 64;

bool is_plain(std::string_view name) {
  return name.size() <= kMostNameBytes && std::ranges::all_of(name, [](char letter) {
           return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                  (letter >= '0' && letter <= '9') || letter == '.' || letter == '_' ||
                  letter == '-';
         });
}

bool is_side_file(const fs::path& path) {
  const std::string name = path.filename();
  const bool is_text = name.ends_with(".json") || name.ends_with(".txt");
  // The index is of the files of weights here, which the target does not have.
  return is_text && is_plain(name) && !name.starts_with('.') && !name.ends_with(".index.json");
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  return *fs::canonical(path).lexically_relative(fs::canonical(folder)).begin() != "..";
}

}  // namespace

SideFiles read_side_files(const fs::path& folder) {
  SideFiles found;
  try {
    std::set<fs::path> paths;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      std::error_code unknown;  // Of a link in a circle.
      if (is_side_file(entry.path()) && entry.is_regular_file(unknown)) paths.insert(entry.path());
    }
    std::uint64_t bytes = 0;
    for (const fs::path& path : paths) {
      const std::string name = path.filename();
      if (!is_inside(path, folder)) {
        found.left_out.push_back(name + " (a link out of the folder)");
        continue;
      }
      const ReadableFile file(path);
      if (found.texts.size() == kMostFiles || file.size_bytes() > kMostBytes - bytes) {
        found.left_out.push_back(name + " (too large)");
        continue;
      }
      bytes += file.size_bytes();
      found.texts.emplace(name, file.text());
    }
  } catch (const fs::filesystem_error& error) {
    throw SystemError(concat("read the files of ", folder.string()), error.code().value());
  }
  return found;
}

}  // namespace lockstep::inline internal
