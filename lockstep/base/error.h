#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep {

/// Exit code of a program that ends with an error other than the ones below.
inline constexpr int kExitFailure = 1;
/// Exit code after a UsageError.
inline constexpr int kExitUsage = 2;
/// Exit code of a preempted program that has saved its state and resumes when it is started again:
/// EX_TEMPFAIL of sysexits.h.
inline constexpr int kExitPreempted = 75;

/// Base class of Lockstep's exceptions. what() is one line: operation, rank, value, and what to do.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  /// Name of the type, for reports.
  virtual const char* name() const noexcept { return "Error"; }
  /// Exit code of a program that ends with this error; run_main returns it.
  virtual int exit_code() const noexcept { return kExitFailure; }
};

/// The caller passed an invalid flag, option, tensor or file, or called in a wrong state.
class UsageError : public Error {
 public:
  using Error::Error;
  const char* name() const noexcept override { return "UsageError"; }
  int exit_code() const noexcept override { return kExitUsage; }
};

/// What an error of a collective, message, remote call or rendezvous says, as values that a program
/// can read. Unknown fields are empty.
struct ErrorFields {
  /// "all_reduce", "recv", "monitored_barrier", "init_process_group"; for RPC with function and
  /// worker.
  std::string operation = {};
  std::string group = {};            ///< name of the process group
  std::optional<int> own_rank = {};  ///< this process's rank in the group
  /// Number of collectives (for send and recv: messages) that the group started before this one.
  std::optional<std::uint64_t> sequence = {};
  std::optional<std::chrono::milliseconds> timeout = {};  ///< of the operation
  /// Ranks of the group that are lost, that failed, or that the operation waited for; ascending.
  std::vector<int> ranks = {};
};

/// Formats the known fields: "all_reduce number 87 of group 'default' on rank 0".
std::string describe(const ErrorFields& fields);

/// An operation that needs other processes did not complete. Base class of TimeoutError, PeerLost,
/// PeerFailed and CommError.
class OperationError : public Error {
 public:
  using Error::Error;
  /// what() is `describe(fields): reason`.
  OperationError(ErrorFields fields, const std::string& reason);
  /// what() is `message`.
  OperationError(const std::string& message, ErrorFields fields);

  /// Operation, group, ranks and timeout of the failure.
  const ErrorFields& fields() const noexcept;
  /// The rank that is lost, failed or was waited for. Empty if it is unknown or there are several,
  /// see fields().ranks.
  std::optional<int> rank() const noexcept;

 private:
  // Shared, so that copies of an exception do not throw.
  std::shared_ptr<const ErrorFields> fields_ = {};
};

/// The deadline expired before the operation was complete. rank() is the rank that it waited for.
class TimeoutError : public OperationError {
 public:
  using OperationError::OperationError;
  const char* name() const noexcept override { return "TimeoutError"; }
};

/// A peer's process or connection is gone: the collective cannot complete, and the group is
/// unusable. rank() is the lost rank; backends that use sockets know it only for send and recv.
class PeerLost : public OperationError {
 public:
  using OperationError::OperationError;
  const char* name() const noexcept override { return "PeerLost"; }
};

/// Another rank, rank(), reported an error, so the operation failed here too. The cause is in that
/// rank's own error.
class PeerFailed : public OperationError {
 public:
  using OperationError::OperationError;
  const char* name() const noexcept override { return "PeerFailed"; }
};

/// A collective failed for another reason than a deadline or a lost peer.
class CommError : public OperationError {
 public:
  using OperationError::OperationError;
  const char* name() const noexcept override { return "CommError"; }
};

/// The operating system refused: disk full, no permission, no such file, port in use.
class SystemError : public Error {
 public:
  /// what() is `operation: text of errno; advice`. For EMFILE and ENFILE the advice is how to
  /// allow more open files.
  SystemError(const std::string& operation, int errno_value, const std::string& advice = "");
  const char* name() const noexcept override { return "SystemError"; }
  /// errno of the failed system call.
  int errno_value() const noexcept { return errno_value_; }

 private:
  int errno_value_;
};

/// A file is truncated, corrupt, or not of the format that its name says.
class CorruptFile : public Error {
 public:
  using Error::Error;
  const char* name() const noexcept override { return "CorruptFile"; }
};

}  // namespace lockstep
