#pragma once

#include <string>

#include "lockstep/base/error.h"

namespace lockstep::rpc {

/// A function that was called on another worker threw. what() names the call, the worker and what
/// it said there.
class RemoteError : public Error {
 public:
  RemoteError(const std::string& call, std::string worker, std::string type_name,
              const std::string& message)
      : Error(call + ": " + type_name + ": " + message),
        worker_(std::move(worker)),
        type_name_(std::move(type_name)) {}

  const char* name() const noexcept override { return "RemoteError"; }
  /// The worker on which it was thrown.
  const std::string& worker() const { return worker_; }
  /// Of the error there: "UsageError", "std::out_of_range", ….
  const std::string& type_name() const { return type_name_; }

 private:
  std::string worker_;
  std::string type_name_;
};

}  // namespace lockstep::rpc
