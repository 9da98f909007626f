#include "launcher/command_line/installed_package.h"

#include <cstdio>
#include <system_error>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTorchConfig = "share/cmake/Torch/TorchConfig.cmake";

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Beside programs in `folder`: an installation, or where pip may have put a wheel.
std::vector<InstalledPackage> candidates(const fs::path& folder) {
  const fs::path prefix = folder.parent_path();
  std::vector<fs::path> site_packages = {prefix};  // pip install --target
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(prefix / "lib", error)) {
    if (!entry.path().filename().string().starts_with("python")) continue;
    site_packages.push_back(entry.path() / "site-packages");
    site_packages.push_back(entry.path() / "dist-packages");  // Debian's pip
  }
  std::vector<InstalledPackage> all = {{.prefix = prefix, .libtorch = LOCKSTEP_TORCH_PREFIX}};
  for (const fs::path& place : site_packages) {
    all.push_back({.prefix = place / "lockstep_torch/sdk", .libtorch = place / "torch"});
  }
  return all;
}

bool is_prefix(const fs::path& prefix) {
  return is_there(prefix / cmake_package_folder() / "lockstepConfig.cmake");
}

}  // namespace

fs::path cmake_package_folder() {
  return LOCKSTEP_PACKAGE_FOLDER;
}

InstalledPackage find_installed_package(const fs::path& folder) {
  for (InstalledPackage& package : candidates(folder)) {
    if (!is_prefix(package.prefix)) continue;
    if (!is_there(package.libtorch / kTorchConfig)) package.libtorch.clear();
    return package;
  }
  throw UsageError(concat("there is no installed Lockstep beside ", folder.string(),
                          "; run pip install lockstep-torch, or cmake --install BUILD --prefix DIR "
                          "and then DIR/bin/lockstep"));
}

std::string cmake_prefix_path(const InstalledPackage& package, const char* command) {
  if (!package.libtorch.empty()) {
    return concat(package.prefix.string(), ";", package.libtorch.string());
  }
  std::fprintf(stderr,
               "lockstep %s: the LibTorch of this Lockstep is missing; add the folder of another "
               "to CMAKE_PREFIX_PATH\n",
               command);
  return package.prefix.string();
}

}  // namespace lockstep::inline internal
