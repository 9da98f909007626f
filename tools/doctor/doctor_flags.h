#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// The flags of `lockstep doctor`; empty where they are not given.
struct DoctorFlags {
  bool help = false;
  bool json = false;
  std::string hosts;
  std::string ssh_command;
  std::string remote_lockstep;
  std::string nnodes;
  std::string rdzv_endpoint;
  std::string secret_file;
  std::string local_addr;
  /// How long machines are waited for.
  std::chrono::milliseconds timeout{10'000};
  /// What the job is to run; empty: it is not looked at.
  std::string program;

  /// Not for people: what is asked of one of several machines. The facts, with the way to
  /// `towards`; its calls to others; its part where machines meet, with the findings left in a
  /// file.
  bool report = false;
  std::string towards;
  std::string reach;
  std::string meet;
};

/// Errors: UsageError.
DoctorFlags parse_doctor_flags(const std::vector<std::string>& arguments);

const char* doctor_help();

}  // namespace lockstep::inline internal
