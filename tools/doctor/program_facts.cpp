#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include <unistd.h>

#include "launcher/command_line/ask_program.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/os/files/file_fingerprint.h"
#include "lockstep/os/process/find_program.h"
#include "tools/doctor/gather_facts.h"

namespace lockstep::inline internal {
namespace {

std::string version_beside(const std::filesystem::path& library) {
  // LibTorch has build-version beside lib/, a wheel of PyTorch version.py.
  const auto folder = library.parent_path().parent_path();
  std::string line;
  if (std::ifstream(folder / "build-version") >> line) return line;
  std::ifstream python(folder / "version.py");
  while (std::getline(python, line)) {
    if (!line.starts_with("__version__")) continue;
    const auto begin = line.find('\'');
    const auto end = line.rfind('\'');
    if (begin < end) return line.substr(begin + 1, end - begin - 1);
  }
  return "";
}

void take_libraries(ProgramFacts& facts, const std::string& listed) {
  std::istringstream lines(listed);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::string arrow;
    std::string path;
    words >> name >> arrow >> path;
    if (arrow != "=>") continue;
    if (path == "not") facts.missing_libraries.push_back(name);
    if (name.starts_with("libtorch_cpu.so") && path.starts_with("/")) {
      facts.libtorch = path;
      facts.libtorch_version = version_beside(path);
    }
  }
}

// The dynamic loader lists the libraries of a program that names it, and does not run it.
std::string list_libraries(const std::string& path) {
  std::string magic(4, '\0');
  std::ifstream(path).read(magic.data(), 4);
  constexpr std::array kLoaders = {"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"};
  if (magic !=
      "\x7f"
      "ELF")
    return "";
  for (const char* const loader : kLoaders) {
    if (::access(loader, X_OK) == 0) return ask_program({loader, "--list", path}).out;
  }
  return "";
}

}  // namespace

ProgramFacts look_at_program(const std::string& name) {
  ProgramFacts facts{.name = name};
  try {
    if (name.ends_with(".py")) {
      facts.path = name;
      if (::access(name.c_str(), R_OK) != 0) {
        facts.trouble = concat("cannot read ", name, ": ", std::generic_category().message(errno));
      }
    } else {
      facts.path = find_program(name);
      take_libraries(facts, list_libraries(facts.path));
    }
    facts.fingerprint = file_fingerprint(facts.path);
  } catch (const Error& error) {
    facts.trouble = error.what();
  }
  return facts;
}

PythonFacts look_at_python() {
  PythonFacts facts{.asked = true};
  try {
    facts.path = find_python();
    const ProgramResult result = ask_program({facts.path, "-c",
                                              "import importlib.metadata as m\n"
                                              "try: print(m.version('torch'))\n"
                                              "except m.PackageNotFoundError: pass"});
    if (result.status != 0) facts.trouble = concat("exit code ", result.status);
    facts.torch_version = result.out.substr(0, result.out.find('\n'));
  } catch (const Error& error) {
    facts.trouble = error.what();
  }
  return facts;
}

}  // namespace lockstep::inline internal
