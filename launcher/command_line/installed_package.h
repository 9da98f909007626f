#pragma once

#include <filesystem>

namespace lockstep::inline internal {

/// An installed Lockstep (by `cmake --install` or a wheel), for CMAKE_PREFIX_PATH.
struct InstalledPackage {
  std::filesystem::path prefix;    ///< of headers, libraries and the CMake package
  std::filesystem::path libtorch;  ///< empty: it was removed; CMake needs the path of another
};

/// Path of the CMake package within a prefix.
std::filesystem::path cmake_package_folder();

/// Finds the package of the programs in `folder`. A wheel's programs are apart from its package, in
/// a place that depends on how pip was called.
/// Errors: UsageError if there is none, as for programs in a build folder.
InstalledPackage find_installed_package(const std::filesystem::path& folder);

/// "prefix;libtorch". If LibTorch was removed, prints a line about it on standard error; `command`
/// is for that line.
std::string cmake_prefix_path(const InstalledPackage& package, const char* command);

}  // namespace lockstep::inline internal
