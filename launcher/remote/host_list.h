#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// A machine that is reached by ssh.
struct RemoteHost {
  /// As ssh takes it: a name, an address or an alias, with "user@" before it where given.
  std::string name{};
  /// Workers there; nothing: not said.
  std::optional<int> slots{};
  bool operator==(const RemoteHost&) const = default;

  /// As other machines may know it: without the user.
  std::string address() const;
};

/// "a,b:2,[::1]:2": hosts with commas between them, each with the number of its workers where
/// given. Errors: UsageError.
std::vector<RemoteHost> parse_host_list(const std::string& text);

/// A host file as Open MPI's and MPICH's: a host a line, "a slots=2" or "a:2", what follows a # is
/// a comment. `name`: of the file, for errors. Errors: UsageError with the line.
std::vector<RemoteHost> parse_host_file(const std::string& content, const std::string& name);

/// What --hosts says: a file of hosts where there is one of that name, else a list.
/// Errors: UsageError.
std::vector<RemoteHost> read_hosts(const std::string& text);

}  // namespace lockstep::inline internal
