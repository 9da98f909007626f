#include "lockstep/rpc/function_binding.h"

#include <map>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/rpc/internal/worker.h"

namespace lockstep::rpc {
namespace {

// What others may call, by name.
struct FunctionTable {
  Mutex mutex;
  std::map<std::string, std::shared_ptr<const Function>> functions LOCKSTEP_GUARDED_BY(mutex);
};

FunctionTable& table() {
  // Never destroyed: threads that serve calls may outlive main().
  static auto* const table = new FunctionTable;
  return *table;
}

}  // namespace

void add_function(const std::string& name, Function function) {
  if (name.empty()) throw UsageError("rpc::register_function: a function needs a name");
  const MutexLock lock(table().mutex);
  const bool added =
      table().functions.emplace(name, std::make_shared<const Function>(std::move(function))).second;
  if (!added) {
    throw UsageError(concat("rpc::register_function: there is a function '", name, "' already"));
  }
}

void unregister_function(const std::string& name) {
  std::shared_ptr<const Function> gone;  // With what it captured, outside of the lock.
  const MutexLock lock(table().mutex);
  if (auto found = table().functions.extract(name)) gone = std::move(found.mapped());
}

inline namespace internal {

std::shared_ptr<const Function> find_function(const std::string& name) {
  const MutexLock lock(table().mutex);
  const auto found = table().functions.find(name);
  if (found != table().functions.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& entry : table().functions) names.push_back(entry.first);
  throw UsageError(concat("there is no function '", name, "' here", did_you_mean(name, names),
                          "; register it before rpc::init"));
}

}  // namespace internal

namespace binding {

void refuse_object() {
  throw UsageError("it is no object of the type that the function takes; pass an RRef to one");
}

void refuse_kind(const c10::IValue& value, const char* wanted) {
  throw UsageError(concat("it is of type ", value.tagKind(), ", not ", wanted));
}

void refuse_type(const c10::IValue& value, const c10::Type& wanted) {
  throw UsageError(concat("it is of type ", value.type()->str(), ", not ", wanted.str()));
}

void refuse_range(std::int64_t value, const std::string& least, const std::string& most) {
  throw UsageError(concat(value, " is not within ", least, " to ", most));
}

void refuse_argument(std::size_t index, const UsageError& error) {
  throw UsageError(concat("argument ", index + 1, ": ", error.what()));
}

void refuse_count(std::size_t takes, std::size_t given) {
  throw UsageError(concat("it takes ", takes, " arguments, not ", given));
}

}  // namespace binding
}  // namespace lockstep::rpc
