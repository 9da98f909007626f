#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// A machine that ssh connects to.
struct RemoteHost {
  /// Name for ssh: a host name, an address or an alias, possibly with "user@".
  std::string name{};
  /// Number of workers there; empty: not given.
  std::optional<int> slots{};
  bool operator==(const RemoteHost&) const = default;

  /// The name without the user.
  std::string address() const;
};

/// Parses "a,b:2,[::1]:2": hosts separated by commas, each possibly with its number of workers.
/// Errors: UsageError.
std::vector<RemoteHost> parse_host_list(const std::string& text);

/// Parses a host file of Open MPI or MPICH: one host per line, "a slots=2" or "a:2"; # begins a
/// comment. `name`: of the file, for errors.
/// Errors: UsageError with the line.
std::vector<RemoteHost> parse_host_file(const std::string& content, const std::string& name);

/// Reads --hosts: a host file if a file of that name exists, else a list.
/// Errors: UsageError.
std::vector<RemoteHost> read_hosts(const std::string& text);

}  // namespace lockstep::inline internal
