#include "launcher/command_line/installed_package.h"

#include <fstream>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

void make_file(const fs::path& path) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << "here";
}

TEST(InstalledPackage, OfAWheelIsFoundWhereverPipHasPutIt) {
  for (const char* place : {"lib/python3.11/site-packages", "lib/python3.11/dist-packages", ""}) {
    const TemporaryDirectory folder(temporary_folder(), "lockstep_test_");
    const fs::path packages = folder.path() / place;
    const fs::path sdk = packages / "lockstep_torch/sdk";
    make_file(sdk / cmake_package_folder() / "lockstepConfig.cmake");
    const fs::path programs = folder.path() / "bin";
    EXPECT_EQ(find_installed_package(programs).libtorch, "") << place;
    make_file(packages / "torch/share/cmake/Torch/TorchConfig.cmake");
    const InstalledPackage found = find_installed_package(programs);
    EXPECT_TRUE(fs::equivalent(found.prefix, sdk)) << place;
    EXPECT_TRUE(fs::equivalent(found.libtorch, packages / "torch")) << place;
  }
}

TEST(InstalledPackage, OfAnInstallationIsTheFolderAbove) {
  const TemporaryDirectory folder(temporary_folder(), "lockstep_test_");
  const fs::path& prefix = folder.path();
  make_file(prefix / cmake_package_folder() / "lockstepConfig.cmake");
  EXPECT_EQ(find_installed_package(prefix / "bin").prefix, prefix);
}

TEST(InstalledPackage, IsMissingBesideABuild) {
  const TemporaryDirectory folder(temporary_folder(), "lockstep_test_");
  EXPECT_THROW(find_installed_package(folder.path() / "bin"), UsageError);
}

}  // namespace
}  // namespace lockstep::inline internal
