#include "tools/doctor/judge_program.h"

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

using Level = Finding::Level;

struct Add {
  const std::string& machine;
  std::vector<Finding>& findings;

  void operator()(Level level, const char* subject, const std::string& text,
                  const std::string& cure = "") const {
    findings.push_back({level, machine, subject, text, cure});
  }
};

void judge_file(const MachineFacts& facts, bool has_peers, const Add& add) {
  const ProgramFacts& program = facts.program;
  if (program.name.empty()) return;
  if (!program.trouble.empty()) {
    add(Level::kFail, "program", program.trouble,
        has_peers ? "it must be at the same path on each machine" : "");
  } else if (!program.missing_libraries.empty()) {
    add(Level::kFail, "program",
        concat(program.path, " needs ", joined(program.missing_libraries), ", which is not found"),
        "install it, or set LD_LIBRARY_PATH to its folder");
  } else {
    add(Level::kOk, "program",
        concat(program.path, " (", program.fingerprint, ")",
               program.libtorch.empty()
                   ? ""
                   : concat(", LibTorch ", program.libtorch_version, " of ", program.libtorch)));
  }
}

void judge_python(const MachineFacts& facts, const Add& add) {
  const PythonFacts& python = facts.python;
  if (!python.asked) return;
  if (!python.trouble.empty()) {
    add(Level::kFail, "Python", python.trouble, "set PYTHON_EXEC to the one to use");
  } else if (python.torch_version.empty()) {
    add(Level::kWarn, "Python", concat(python.path, " has no torch"),
        "set PYTHON_EXEC to one that has, or pip install torch");
  } else {
    add(Level::kOk, "Python", concat(python.path, ", torch ", python.torch_version));
  }
}

}  // namespace

void judge_program(const MachineFacts& facts, const std::string& machine, bool has_peers,
                   std::vector<Finding>& findings) {
  const Add add{machine, findings};
  judge_file(facts, has_peers, add);
  judge_python(facts, add);
}

std::string joined(const std::vector<std::string>& texts) {
  std::string result;
  for (const std::string& text : texts) result += concat(result.empty() ? "" : ", ", text);
  return result;
}

}  // namespace lockstep::inline internal
