#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep {

/// Exit status of a program that ends with an error of each kind.
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
/// A preempted program has saved its state and resumes when it is started again:
/// EX_TEMPFAIL of sysexits.h.
inline constexpr int kExitPreempted = 75;

/// Base of every error Lockstep throws. what() is one line: the operation, the rank and the value
/// that failed, then what to do about it.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  /// The type's name, for reports.
  virtual const char* name() const noexcept { return "Error"; }
  virtual int exit_code() const noexcept { return kExitFailure; }
};

/// The caller passed something that cannot work: a flag, an option, a tensor, a file of another
/// kind.
class UsageError : public Error {
 public:
  using Error::Error;
  const char* name() const noexcept override { return "UsageError"; }
  int exit_code() const noexcept override { return kExitUsage; }
};

/// What an error of a collective, a message, a call or a meeting of ranks says, as values: for
/// programs that decide by them. A field that is not known or has no meaning there is empty.
struct ErrorFields {
  /// "all_reduce", "recv", "monitored_barrier", "init_process_group"; of calls by RPC with function
  /// and worker.
  std::string operation = {};
  std::string group = {};            ///< name of the process group
  std::optional<int> own_rank = {};  ///< of this process in the group
  /// Collectives, for send and recv messages, that the group started before.
  std::optional<std::uint64_t> sequence = {};
  std::optional<std::chrono::milliseconds> timeout = {};  ///< what the operation was given
  /// Ranks that are lost, that failed, or that a timeout waited for: in the group's numbering,
  /// in ascending order.
  std::vector<int> ranks = {};
};

/// "all_reduce number 87 of group 'default' on rank 0", of the fields that are there.
std::string describe(const ErrorFields& fields);

/// An operation that needs other processes did not complete: a TimeoutError, PeerLost, PeerFailed
/// or CommError.
class OperationError : public Error {
 public:
  using Error::Error;
  /// what() is "<the described fields>: <reason>".
  OperationError(ErrorFields fields, const std::string& reason);
  /// what() is `message`, which says the fields in words of its own.
  OperationError(const std::string& message, ErrorFields fields);

  const ErrorFields& fields() const noexcept;
  /// The rank that is lost, failed or was waited for; none where it is not known or there are
  /// several, which are in fields().ranks.
  std::optional<int> rank() const noexcept;

 private:
  // Shared, so that copies of an exception do not throw.
  std::shared_ptr<const ErrorFields> fields_ = {};
};

/// A deadline passed before the operation was complete. rank() was waited for.
class TimeoutError : public OperationError {
 public:
  using OperationError::OperationError;
  const char* name() const noexcept override { return "TimeoutError"; }
};

/// A peer's process or connection is gone: the collective cannot complete, the group is of no use.
/// rank() is lost: backends on sockets know it of send and recv alone.
class PeerLost : public OperationError {
 public:
  using OperationError::OperationError;
  const char* name() const noexcept override { return "PeerLost"; }
};

/// Another rank reported an error; this one only follows. rank() is that rank, whose own error
/// says why.
class PeerFailed : public OperationError {
 public:
  using OperationError::OperationError;
  const char* name() const noexcept override { return "PeerFailed"; }
};

/// A collective failed for a reason other than a deadline or a lost peer.
class CommError : public OperationError {
 public:
  using OperationError::OperationError;
  const char* name() const noexcept override { return "CommError"; }
};

/// The operating system refused: disk full, no permission, no such file, port taken.
class SystemError : public Error {
 public:
  /// The message becomes "<operation>: <text of the errno>; <advice>", where no file more may be
  /// opened with the advice for that.
  SystemError(const std::string& operation, int errno_value, const std::string& advice = "");
  const char* name() const noexcept override { return "SystemError"; }
  int errno_value() const noexcept { return errno_value_; }

 private:
  int errno_value_;
};

/// A file is truncated, corrupt, or not what its name promises.
class CorruptFile : public Error {
 public:
  using Error::Error;
  const char* name() const noexcept override { return "CorruptFile"; }
};

}  // namespace lockstep
