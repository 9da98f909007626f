#pragma once

#include <filesystem>
#include <string>

namespace lockstep::inline internal {

/// Where temporary files go: TMPDIR, else /tmp. Errors: SystemError when it is not there.
std::filesystem::path temporary_folder();

/// A new directory that only this user can enter, "<parent>/<prefix><random>".
/// Lifetime: removed with all it holds by the destructor, unless keep() was called.
/// Errors: SystemError when it cannot be made.
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
