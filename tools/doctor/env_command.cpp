#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "launcher/command_line/installed_package.h"
#include "launcher/command_line/program_beside.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/record/internal/machine_description.h"
#include "tools/commands.h"
#include "tools/doctor/gather_facts.h"
#include "tools/parse_flags.h"

namespace lockstep::inline internal {
namespace {

#if defined(__clang__)
constexpr const char* kCompiler = __VERSION__;  // says its name, too
#else
constexpr const char* kCompiler = "GCC " __VERSION__;
#endif

constexpr const char* kFlagVariables =
    "PET_<FLAG>\n"
    "    default of a flag of lockstep run: PET_NPROC_PER_NODE=2 for --nproc-per-node=2\n";

std::string name_of_system() {
  const std::string key = "PRETTY_NAME";
  std::ifstream file("/etc/os-release");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t begin = line.find_first_not_of("=:\t \"", key.size());
    const std::size_t end = line.find_last_not_of("\" ");
    return begin == std::string::npos ? "" : line.substr(begin, end + 1 - begin);
  }
  return "";
}

std::string gigabytes(std::uint64_t bytes) {
  constexpr double kGigabyte = 1e9;
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f GB", static_cast<double>(bytes) / kGigabyte);
  return text;
}

void show(const char* what, const std::string& text) {
  std::printf("%-12s%s\n", what, text.empty() ? "unknown" : text.c_str());
}

// That of the tools beside this one.
std::string libtorch(const MachineFacts& facts) {
  if (facts.program.libtorch.empty()) return "none: lockstep-test-rank is missing";
  return concat(facts.program.libtorch_version, " in ", facts.program.libtorch);
}

void show_machine() {
  const std::string tool = (program_folder() / "lockstep-test-rank").string();
  const MachineFacts facts = gather_facts({.program = tool, .lockstep_version = LOCKSTEP_VERSION});
  show("lockstep",
       concat(LOCKSTEP_VERSION, ", compiled by ", kCompiler, " in ", program_folder().string()));
  show("LibTorch", libtorch(facts));
  const PythonFacts python = look_at_python();
  show("Python", !python.trouble.empty() ? python.trouble
                 : python.torch_version.empty()
                     ? concat(python.path, ", no torch")
                     : concat(python.path, ", torch ", python.torch_version));
  show("system", concat(name_of_system(), ", kernel ", facts.kernel));
  show("processors", concat(facts.processors,
                            facts.processor_quota ? concat(" (quota ", *facts.processor_quota, ")")
                                                  : std::string(),
                            ", ", describe_machine().processor));
  show("memory", concat(gigabytes(facts.memory_bytes), ", free ",
                        gigabytes(facts.memory_available_bytes), "; /dev/shm ",
                        gigabytes(facts.shm_bytes), ", free ", gigabytes(facts.shm_free_bytes)));
  show("GPUs", facts.gpus == 0 ? std::string("none")
                               : concat(facts.gpus, " NVIDIA, driver ", facts.gpu_driver));
  std::puts("");
}

}  // namespace

int env_command(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Prints what a bug report needs: versions of Lockstep, LibTorch, Python and the system; "
      "processors,\n"
      "memory and GPUs; each environment variable of Lockstep with its type, meaning and value.",
      "lockstep env");
  bool wants_prefix = false;
  app.add_flag("--cmake-prefix", wants_prefix,
               "print only what CMAKE_PREFIX_PATH needs to find this Lockstep and its LibTorch");
  app.footer(
      "Examples:\n"
      "  lockstep env > report.txt\n"
      "  cmake -B build -DCMAKE_PREFIX_PATH=\"$(lockstep env --cmake-prefix)\"\n"
      "  LOCKSTEP_TIMEOUT_S=60 lockstep env");
  if (!parse_flags(app, arguments)) return 0;
  if (wants_prefix) {
    std::puts(cmake_prefix_path(find_installed_package(program_folder()), "env").c_str());
    return 0;
  }
  show_machine();
  for (const env::Variable* variable : env::all()) {
    auto value = env::text(*variable);
    if (value && variable->is_secret) value = "(set; not shown)";
    std::printf("%s (%s)%s%s\n    %s\n", variable->name, variable->type, value ? " = " : "",
                value.value_or("").c_str(), variable->help);
  }
  std::fputs(kFlagVariables, stdout);
  for (const std::string& line : env::everything()) {
    if (line.starts_with("PET_")) std::printf("    %s\n", line.c_str());
  }
  return 0;
}

}  // namespace lockstep::inline internal
