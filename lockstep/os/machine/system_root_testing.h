#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {

/// Fixture of a test with a folder in place of "/".
class SystemRootTest : public testing::Test {
 protected:
  const std::filesystem::path& root() const { return directory_.path(); }

  /// Writes a file below the root, such as "proc/self/cgroup".
  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = root() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

 private:
  TemporaryDirectory directory_{std::filesystem::temp_directory_path(), "lockstep_test_"};
};

}  // namespace lockstep
