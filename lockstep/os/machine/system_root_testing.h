#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {

/// A test in a made-up system: a folder that stands for "/".
class SystemRootTest : public testing::Test {
 protected:
  const std::filesystem::path& root() const { return directory_.path(); }

  /// `file` is below the root, as in "proc/self/cgroup".
  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = root() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

 private:
  TemporaryDirectory directory_{std::filesystem::temp_directory_path(), "lockstep_test_"};
};

}  // namespace lockstep
