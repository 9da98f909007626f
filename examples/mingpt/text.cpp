#include "examples/mingpt/text.h"

#include <algorithm>
#include <cwchar>
#include <filesystem>
#include <locale>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/readable_file.h"

namespace mingpt {
namespace {

namespace fs = std::filesystem;
using Codec = std::codecvt<char32_t, char8_t, std::mbstate_t>;

std::vector<fs::path> text_files(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path extension = entry->path().extension();
    if (entry->is_regular_file() && (extension == ".md" || extension == ".txt")) {
      files.push_back(entry->path());
    }
  }
  if (error) {
    throw lockstep::SystemError(lockstep::concat("read the folder ", path), error.value());
  }
  if (files.empty()) {
    throw lockstep::UsageError(lockstep::concat("read text from the folder ", path,
                                                ": no *.md or *.txt below it; give a file"));
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::u32string read_text(const std::vector<std::string>& paths) {
  std::u32string text;
  for (const std::string& path : paths) {
    for (const fs::path& file_path : text_files(path)) {
      const lockstep::ReadableFile file(file_path);
      std::string bytes(file.size_bytes(), '\0');
      file.read(0, bytes.data(), bytes.size());
      text += from_utf8(bytes, file_path.string());
    }
  }
  return text;
}

std::string to_utf8(std::u32string_view text) {
  constexpr std::size_t kMostBytesACharacter = 4;
  std::u8string bytes(text.size() * kMostBytesACharacter, u8'\0');
  std::mbstate_t state{};
  const char32_t* taken = nullptr;
  char8_t* written = nullptr;
  std::use_facet<Codec>(std::locale::classic())
      .out(state, text.data(), text.data() + text.size(), taken, bytes.data(),
           bytes.data() + bytes.size(), written);
  return std::string(bytes.data(), written);
}

std::u32string from_utf8(std::string_view text, const std::string& source) {
  const std::u8string bytes(text.begin(), text.end());
  std::u32string characters(bytes.size(), U'\0');
  std::mbstate_t state{};
  const char8_t* taken = nullptr;
  char32_t* written = nullptr;
  const auto result = std::use_facet<Codec>(std::locale::classic())
                          .in(state, bytes.data(), bytes.data() + bytes.size(), taken,
                              characters.data(), characters.data() + characters.size(), written);
  if (result != Codec::ok) {
    throw lockstep::CorruptFile(
        lockstep::concat(source, ": byte ", taken - bytes.data(),
                         " is not UTF-8; convert it, as with iconv -t UTF-8"));
  }
  characters.resize(static_cast<std::size_t>(written - characters.data()));
  return characters;
}

}  // namespace mingpt
