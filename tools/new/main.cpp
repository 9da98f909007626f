// The program `lockstep-new`, which `lockstep new` becomes.
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "launcher/command_line/program_beside.h"
#include "launcher/command_line/run_tool.h"
#include "launcher/command_line/split_arguments.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "tools/new/new_project.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHelp =
    "Usage: lockstep new NAME\n\n"
    "Writes a project into a new folder NAME: a network, a data set and a Trainer, with CMake "
    "files\n"
    "that find this Lockstep and its LibTorch. It builds and trains as it is; put your own model\n"
    "and data in their place.\n\n"
    "Example:\n"
    "  lockstep new mynet && cd mynet\n"
    "  cmake --preset default && cmake --build --preset default\n"
    "  ./build/mynet --devices=2\n";

// Of the installed package; a project cannot be built against Lockstep's own build folder.
fs::path installed_prefix() {
  const fs::path prefix = program_folder().parent_path();
  std::error_code error;
  if (fs::exists(prefix / LOCKSTEP_PACKAGE_FOLDER / "lockstepConfig.cmake", error)) return prefix;
  throw UsageError(
      concat("lockstep new: ", prefix.string(),
             " is not where Lockstep is installed; cmake --install BUILD --prefix DIR, "
             "then DIR/bin/lockstep new"));
}

std::string prefix_path() {
  const std::string lockstep = installed_prefix().string();
  std::error_code error;
  if (fs::exists(LOCKSTEP_TORCH_PREFIX, error)) return concat(lockstep, ";", LOCKSTEP_TORCH_PREFIX);
  std::fprintf(
      stderr,
      "lockstep: the LibTorch that this Lockstep was built with is not in %s any more; add "
      "yours to CMAKE_PREFIX_PATH in CMakePresets.json\n",
      LOCKSTEP_TORCH_PREFIX);
  return lockstep;
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  if (!file) throw SystemError(concat("lockstep new: write ", path.string()), errno);
}

// "0.1" of "0.1.0": what a package of the same minor version satisfies.
std::string minor_version() {
  const std::string version = LOCKSTEP_VERSION;
  return version.substr(0, version.rfind('.'));
}

int new_command(const std::vector<std::string>& arguments) {
  const SplitArguments split = split_arguments(arguments, {{.name = "help", .letter = 'h'}});
  if (!split.flags.empty()) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (split.program.size() != 1) {
    throw UsageError("lockstep new: give the name of the project, as in lockstep new mynet");
  }
  const std::string& name = split.program.front();
  const std::vector<ProjectFile> files =
      project_files({.name = name, .version = minor_version(), .prefix_path = prefix_path()});
  std::error_code error;
  if (!fs::create_directory(name, error)) {
    if (error) throw SystemError(concat("lockstep new: make ", name), error.value());
    throw UsageError(concat("lockstep new: ", name, " is there already; choose another name"));
  }
  for (const ProjectFile& file : files) write_file(fs::path(name) / file.name, file.text);
  std::printf(
      "%s has a project. Build it and train:\n"
      "  cd %s\n"
      "  cmake --preset default && cmake --build --preset default\n"
      "  ./build/%s --devices=2\n",
      name.c_str(), name.c_str(), name.c_str());
  return 0;
}

}  // namespace
}  // namespace lockstep::inline internal

int main(int argc, char** argv) {
  return lockstep::run_tool(argc, argv, lockstep::new_command);
}
