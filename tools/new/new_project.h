#pragma once

#include <string>
#include <vector>

namespace lockstep::inline internal {

struct ProjectFile {
  std::string name;
  std::string text;
};

/// The files in project/, with their placeholders; the build generates it.
const std::vector<ProjectFile>& project_templates();

struct ProjectFacts {
  std::string name;
  /// Lockstep's, "0.1".
  std::string version;
  /// CMAKE_PREFIX_PATH: where Lockstep and LibTorch are, with a ; between.
  std::string prefix_path;
};

/// The files of a new project. Pure. Errors: UsageError for a name that CMake or a shell refuses.
std::vector<ProjectFile> project_files(const ProjectFacts& facts);

}  // namespace lockstep::inline internal
