#include "lockstep/os/process/own_arguments.h"

#include <fstream>

namespace lockstep::inline internal {

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

}  // namespace lockstep::inline internal
