#include "launcher/command_line/installed_package.h"

#include <cstdio>
#include <system_error>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInWheel = "lockstep_torch/sdk";
constexpr const char* kTorchConfig = "share/cmake/Torch/TorchConfig.cmake";

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Where pip may have put the package whose programs it put into `folder`.
std::vector<fs::path> site_packages_of(const fs::path& folder) {
  const fs::path environment = folder.parent_path();
  std::vector<fs::path> places = {environment};  // pip install --target
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(environment / "lib", error)) {
    if (!entry.path().filename().string().starts_with("python")) continue;
    places.push_back(entry.path() / "site-packages");
    places.push_back(entry.path() / "dist-packages");  // Debian's pip
  }
  return places;
}

bool is_prefix(const fs::path& prefix) {
  return is_there(prefix / cmake_package_folder() / "lockstepConfig.cmake");
}

}  // namespace

fs::path cmake_package_folder() {
  return LOCKSTEP_PACKAGE_FOLDER;
}

InstalledPackage find_installed_package(const fs::path& folder) {
  InstalledPackage found{.prefix = folder.parent_path(), .libtorch = LOCKSTEP_TORCH_PREFIX};
  if (!is_prefix(found.prefix)) {
    found.prefix.clear();
    for (const fs::path& place : site_packages_of(folder)) {
      if (!is_prefix(place / kInWheel)) continue;
      found = {.prefix = place / kInWheel, .libtorch = place / "torch"};
      break;
    }
  }
  if (found.prefix.empty()) {
    throw UsageError(concat("there is no installed Lockstep beside ", folder.string(),
                            "; run pip install lockstep-torch, or cmake --install BUILD --prefix "
                            "DIR and then DIR/bin/lockstep"));
  }
  if (!is_there(found.libtorch / kTorchConfig)) found.libtorch.clear();
  return found;
}

std::string cmake_prefix_path(const InstalledPackage& package, const char* command) {
  if (!package.libtorch.empty()) {
    return concat(package.prefix.string(), ";", package.libtorch.string());
  }
  std::fprintf(stderr,
               "lockstep %s: the LibTorch of this Lockstep is gone; add the folder of yours to "
               "CMAKE_PREFIX_PATH\n",
               command);
  return package.prefix.string();
}

}  // namespace lockstep::inline internal
