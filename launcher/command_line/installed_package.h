#pragma once

#include <filesystem>

namespace lockstep::inline internal {

/// What `cmake --install` or a wheel has laid down, for CMAKE_PREFIX_PATH.
struct InstalledPackage {
  std::filesystem::path prefix;    ///< of headers, libraries and the CMake package
  std::filesystem::path libtorch;  ///< empty: it is gone; CMake has to be told of another
};

/// Where the CMake package lies in a prefix.
std::filesystem::path cmake_package_folder();

/// The package that the programs in `folder` belong to.
/// A wheel's programs lie apart from its package, in a place that depends on how pip was called.
/// Errors: UsageError where there is none, as for programs in a build folder.
InstalledPackage find_installed_package(const std::filesystem::path& folder);

/// "prefix;libtorch", and where LibTorch is gone a line about that on stderr. `command` is for it.
std::string cmake_prefix_path(const InstalledPackage& package, const char* command);

}  // namespace lockstep::inline internal
