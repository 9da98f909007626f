#include "lockstep/os/files/temporary_directory.h"

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/os/files/remove_tree.h"

namespace lockstep::inline internal {

std::filesystem::path temporary_folder() {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (!error) return folder;
  throw SystemError(concat("the folder for temporary files, TMPDIR=",
                           env::text(env::kTemporaryFolder).value_or("")),
                    error.value(), "set TMPDIR to an existing folder that you may write to");
}

TemporaryDirectory::TemporaryDirectory(const std::filesystem::path& parent,
                                       const std::string& prefix) {
  std::string name = (parent / (prefix + "XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw SystemError(concat("make a directory in ", parent.string()), errno,
                      "name one that you may write to");
  }
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  if (!kept_) remove_tree(path_, ignored);
}

}  // namespace lockstep::inline internal
