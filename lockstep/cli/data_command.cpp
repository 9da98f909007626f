#include <cerrno>
#include <string>
#include <vector>

#include <unistd.h>

#include "lockstep/cli/command.h"
#include "lockstep/cli/program_beside.h"
#include "lockstep/os/find_program.h"

namespace lockstep {

// libcurl and what it needs take five times as long to load as all the rest of `lockstep run`: they
// are left to a program of their own.
int data_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {program_beside("lockstep-data", "data")};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(words.front().c_str(), pointers.data());
  throw exec_refused(words.front(), errno);
}

}  // namespace lockstep
