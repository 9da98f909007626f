#include "launcher/job/worker_command.h"

namespace lockstep::inline internal {

std::string substitute(const std::string& text, const std::map<std::string, std::string>& values) {
  std::string result;
  std::size_t position = 0;
  for (;;) {
    const std::size_t start = text.find("${", position);
    const std::size_t end = text.find('}', start);
    if (start == std::string::npos || end == std::string::npos) break;
    const auto value = values.find(text.substr(start + 2, end - start - 2));
    result.append(text, position, start - position);
    if (value == values.end()) {
      // Only the "${" is passed over: what follows may be the start of one that has a value.
      result.append("${");
      position = start + 2;
    } else {
      result.append(value->second);
      position = end + 1;
    }
  }
  return result.append(text, position);
}

std::vector<std::string> worker_command(const Program& program, const std::string& python,
                                        int local_rank) {
  std::vector<std::string> command;
  if (program.kind != Program::Kind::kExecutable) command = {python, "-u"};
  if (program.kind == Program::Kind::kPythonModule) command.emplace_back("-m");
  command.push_back(program.name);
  for (const std::string& argument : program.arguments) {
    command.push_back(substitute(argument, {{"local_rank", std::to_string(local_rank)}}));
  }
  return command;
}

}  // namespace lockstep::inline internal
