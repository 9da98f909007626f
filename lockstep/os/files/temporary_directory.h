#pragma once

#include <filesystem>
#include <string>

namespace lockstep::inline internal {

/// Folder for temporary files: TMPDIR, else /tmp.
/// Errors: SystemError if it does not exist.
std::filesystem::path temporary_folder();

/// A new directory that only this user can enter, "<parent>/<prefix><random>".
/// Lifetime: the destructor removes it with its content, unless keep() was called.
/// Errors: SystemError if it cannot be created.
class TemporaryDirectory {
 public:
  TemporaryDirectory(const std::filesystem::path& parent, const std::string& prefix);
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory();

  const std::filesystem::path& path() const { return path_; }
  void keep() { kept_ = true; }

 private:
  std::filesystem::path path_;
  bool kept_ = false;
};

}  // namespace lockstep::inline internal
