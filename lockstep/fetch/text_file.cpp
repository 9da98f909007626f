#include "lockstep/fetch/text_file.h"

#include "lockstep/os/atomic_file.h"
#include "lockstep/os/readable_file.h"

namespace lockstep {

std::string read_text_file(const std::filesystem::path& path) {
  return ReadableFile(path).text();
}

void write_text_file(const std::filesystem::path& path, const std::string& content) {
  AtomicFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

}  // namespace lockstep
