#pragma once

#include <stdexcept>
#include <string>

namespace lockstep {

/// Exit status of a program that ends with an error of each kind.
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
/// Of one that was told to end, has saved its state and goes on when it is started again: EX_TEMPFAIL
/// of sysexits.h.
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

/// A deadline passed before the operation was complete.
class TimeoutError : public Error {
 public:
  using Error::Error;
  const char* name() const noexcept override { return "TimeoutError"; }
};

/// A peer's process or connection is gone: the collective cannot complete, the group is of no use.
class PeerLost : public Error {
 public:
  using Error::Error;
  const char* name() const noexcept override { return "PeerLost"; }
};

/// Another rank reported an error; this one only follows. The message names that rank, whose own
/// error says why.
class PeerFailed : public Error {
 public:
  using Error::Error;
  const char* name() const noexcept override { return "PeerFailed"; }
};

/// A collective failed for a reason other than a deadline or a lost peer.
class CommError : public Error {
 public:
  using Error::Error;
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
