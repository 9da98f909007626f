#include "lockstep/snapshot/checkpoint/checksum_list.h"

#include <sstream>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/internal/file_name.h"

namespace lockstep::inline internal {
namespace {

constexpr const char* kListName = "checksums.xxh3";
constexpr const char* kListEnd = ".xxh3";
constexpr const char* kNameOfIndexEnds = ".index.json";
constexpr const char* kOnlyFile = "model.safetensors";
constexpr std::size_t kListDigits = 32;
constexpr std::string_view kListGap = "  ";
constexpr std::uint64_t kMaxListBytes = std::uint64_t{64} << 20;

bool is_folder(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

/// That of the only file of a folder lies beside the file.
std::filesystem::path find_list(const std::filesystem::path& path) {
  std::filesystem::path list = checksum_list_path(path);
  std::error_code error;
  if (is_folder(path) && !std::filesystem::exists(list, error)) {
    list = checksum_list_path(path / kOnlyFile);
  }
  return list;
}

}  // namespace

std::filesystem::path checksum_list_path(const std::filesystem::path& path) {
  if (is_folder(path)) return path / kListName;
  if (path.native().ends_with(kNameOfIndexEnds)) return path.parent_path() / kListName;
  return {path.native() + kListEnd};
}

void write_checksum_list(const std::filesystem::path& list,
                         const std::map<std::string, FileDigest>& files) {
  std::string text;
  for (const auto& [name, digest] : files) text += concat(digest.xxh3, kListGap, name, "\n");
  AtomicFile file(list);
  file.write(text.data(), text.size());
  file.commit();
}

bool verify_checksum_list(const std::filesystem::path& path) {
  const std::filesystem::path list = find_list(path);
  std::error_code error;
  if (!std::filesystem::exists(list, error)) return false;
  const ReadableFile list_file(list);
  const auto refuse = [&](const std::string& what) {
    throw CorruptFile(concat("verify ", list.string(), ": ", what,
                             "; it is damaged: take another copy, or delete it"));
  };
  if (list_file.size_bytes() > kMaxListBytes) refuse("it is larger than any list");
  const std::string text = list_file.text();
  if (!text.empty() && text.back() != '\n') refuse("its end is missing");
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    const std::string name = line.substr(std::min(line.size(), kListDigits + kListGap.size()));
    if (line.find(kListGap) != kListDigits || !is_file_name(name)) refuse("a line is no checksum");
    const ReadableFile file(list.parent_path() / name);
    if (digest_of(file).xxh3 != line.substr(0, kListDigits)) {
      throw CorruptFile(concat("verify ", file.path().string(), ": its checksum is not that in ",
                               list.filename().string(),
                               "; it was damaged or replaced after it was written"));
    }
  }
  return true;
}

}  // namespace lockstep::inline internal
