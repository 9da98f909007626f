#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "launcher/command_line/installed_package.h"
#include "launcher/command_line/program_beside.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "tools/commands.h"
#include "tools/new/new_project.h"
#include "tools/parse_flags.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  if (!file) throw SystemError(concat("new: write ", path.string()), errno);
}

// "0.1" of "0.1.0": what a package of the same minor version satisfies.
std::string minor_version() {
  const std::string version = LOCKSTEP_VERSION;
  return version.substr(0, version.rfind('.'));
}

}  // namespace

int new_command(const std::vector<std::string>& arguments) {
  std::string name;
  CLI::App app(
      "Creates a project in a new folder: a network, a data set, a Trainer, and CMake files that "
      "find "
      "this\n"
      "Lockstep and its LibTorch. It builds and trains as it is; replace its model and data by "
      "yours.",
      "lockstep new");
  app.add_option("NAME", name, "the folder and the program: letters, digits, _ and -")->required();
  app.footer(
      "Examples:\n"
      "  lockstep new mynet && cd mynet\n"
      "  cmake --preset default && cmake --build --preset default && ./build/mynet --devices=2");
  if (!parse_flags(app, arguments)) return 0;
  // A project cannot use Lockstep's build folder.
  const auto package = find_installed_package(program_folder());
  const std::vector<ProjectFile> files = project_files(
      {.name = name, .version = minor_version(), .prefix_path = cmake_prefix_path(package, "new")});
  std::error_code error;
  if (!fs::create_directory(name, error)) {
    if (error) throw SystemError(concat("new: make ", name), error.value());
    throw UsageError(concat("new: ", name, " exists; choose another name"));
  }
  for (const ProjectFile& file : files) write_file(fs::path(name) / file.name, file.text);
  std::printf(
      "created %s; build it and train:\n"
      "  cd %s\n"
      "  cmake --preset default && cmake --build --preset default\n"
      "  ./build/%s --devices=2\n",
      name.c_str(), name.c_str(), name.c_str());
  return 0;
}

}  // namespace lockstep::inline internal
