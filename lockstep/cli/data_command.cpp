#include <string>
#include <vector>

#include "lockstep/cli/command.h"
#include "lockstep/cli/program_beside.h"

namespace lockstep {

// libcurl and what it needs take five times as long to load as all the rest of `lockstep run`: they
// are left to a program of their own.
int data_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {program_beside("lockstep-data", "data")};
  words.insert(words.end(), arguments.begin(), arguments.end());
  become_program(words);
}

}  // namespace lockstep
