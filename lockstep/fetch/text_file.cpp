#include "lockstep/fetch/text_file.h"

#include "lockstep/os/atomic_file.h"
#include "lockstep/os/readable_file.h"

namespace lockstep {

std::string read_text_file(const std::filesystem::path& path) {
  const ReadableFile file(path);
  std::string content(file.size_bytes(), '\0');
  file.read(0, content.data(), content.size());
  return content;
}

void write_text_file(const std::filesystem::path& path, const std::string& content) {
  AtomicFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

}  // namespace lockstep
