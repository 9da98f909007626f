#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/rpc/function_binding.h"

namespace lockstep::rpc::inline internal {

/// What others may call, by name. A result that is a c10::ivalue::Future is answered once it is
/// complete. Threads: any.
class FunctionTable {
 public:
  /// Errors: UsageError for an empty name, or one that is taken.
  void add(const std::string& name, Function function);
  void remove(const std::string& name);
  /// Errors: UsageError for a name that is not there, with the nearest one.
  std::shared_ptr<const Function> find(const std::string& name) const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<const Function>> functions_ LOCKSTEP_GUARDED_BY(mutex_);
};

/// That of this process.
FunctionTable& functions();

}  // namespace lockstep::rpc::inline internal
