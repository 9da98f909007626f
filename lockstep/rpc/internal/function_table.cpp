#include "lockstep/rpc/internal/function_table.h"

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/nearest_name.h"

namespace lockstep::rpc::inline internal {

void FunctionTable::add(const std::string& name, Function function) {
  if (name.empty()) throw UsageError("rpc::register_function: a function needs a name");
  const MutexLock lock(mutex_);
  const bool added =
      functions_.emplace(name, std::make_shared<const Function>(std::move(function))).second;
  if (!added) {
    throw UsageError(concat("rpc::register_function: there is a function '", name, "' already"));
  }
}

void FunctionTable::remove(const std::string& name) {
  std::shared_ptr<const Function> gone;  // With what it captured, outside of the lock.
  const MutexLock lock(mutex_);
  const auto found = functions_.find(name);
  if (found == functions_.end()) return;
  gone = std::move(found->second);
  functions_.erase(found);
}

std::shared_ptr<const Function> FunctionTable::find(const std::string& name) const {
  const MutexLock lock(mutex_);
  const auto found = functions_.find(name);
  if (found != functions_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& entry : functions_) names.push_back(entry.first);
  throw UsageError(concat("there is no function '", name, "' here", did_you_mean(name, names),
                          "; register it before rpc::init"));
}

FunctionTable& functions() {
  // Never destroyed: threads that serve calls may outlive main().
  static auto* const table = new FunctionTable;
  return *table;
}

}  // namespace lockstep::rpc::inline internal

namespace lockstep::rpc {

void add_function(const std::string& name, Function function) {
  functions().add(name, std::move(function));
}

}  // namespace lockstep::rpc

namespace lockstep::rpc {

void unregister_function(const std::string& name) {
  functions().remove(name);
}

}  // namespace lockstep::rpc
