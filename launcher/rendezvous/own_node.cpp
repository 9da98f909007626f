#include "launcher/rendezvous/own_node.h"

#include <cerrno>
#include <system_error>

#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/random_id.h"
#include "lockstep/os/files/file_fingerprint.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/os/process/find_program.h"

namespace lockstep::inline internal {

std::string executable_of(const Program& program) {
  if (program.kind == Program::Kind::kExecutable) return find_program(program.name);
  if (program.kind == Program::Kind::kPythonScript && ::access(program.name.c_str(), R_OK) != 0) {
    throw ProgramError(concat("cannot read ", program.name, ": ",
                              std::generic_category().message(errno), "; check the path"),
                       ProgramError::kNotFound);
  }
  return find_python();
}

RendezvousNode own_node(const LaunchOptions& options, const std::string& executable) {
  RendezvousNode node{.id = concat(host_name(), "-", ::getpid(), "-", random_number()),
                      .name = concat(host_name(), " (pid ", ::getpid(), ")"),
                      .host = host_name(),
                      .worker_count = options.worker_count,
                      .role = options.role,
                      .agreement = options.agreement};
  const RendezvousOptions& rendezvous = options.rendezvous;
  if (rendezvous.backend == RendezvousOptions::Backend::kStatic) node.rank = rendezvous.node_rank;
  const bool alone = rendezvous.max_nodes == 1;
  if (!alone && options.program.kind != Program::Kind::kPythonModule) {
    const bool script = options.program.kind == Program::Kind::kPythonScript;
    node.program = quick_fingerprint(script ? options.program.name : executable);
  }
  return node;
}

}  // namespace lockstep::inline internal
