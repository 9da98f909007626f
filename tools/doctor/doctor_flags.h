#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// The command line of `lockstep doctor`. A text is empty where its flag is not given.
struct DoctorFlags {
  /// If not empty, what to print; nothing else counts then.
  std::string help;
  bool json = false;
  std::string hosts;
  std::string ssh_command;
  std::string remote_lockstep;
  std::string nnodes;
  std::string rdzv_endpoint;
  std::string secret_file;
  std::string local_addr;
  /// For all calls of the machines to each other.
  std::chrono::milliseconds timeout{10'000};
  /// The program that a job is to run.
  std::string program;

  /// Internal, what one of several machines is to do: print its facts, with its address towards
  /// `towards`; call the others by the plan `reach`; or be a worker that writes the findings to
  /// `meet`.
  bool report = false;
  std::string towards;
  std::string reach;
  std::string meet;
};

/// Errors: UsageError.
DoctorFlags parse_doctor_flags(const std::vector<std::string>& arguments);

}  // namespace lockstep::inline internal
