#include "diagnose/verdict/shared_calls.h"

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

SharedCalls::SharedCalls(const UniqueFd& file) noexcept try {
  if (!file.valid()) return;
  if (const auto bytes = memory_file_bytes(file.get())) {
    memory_ = SharedMapping(file.get(), *bytes);
  }
} catch (const SystemError&) {
  // No memory to be had.
}

RecentCalls* SharedCalls::get() const {
  return RecentCalls::at(memory_.data(), memory_.bytes());
}

std::vector<RecentCalls::Call> SharedCalls::read() const {
  const RecentCalls* const recent = get();
  if (recent == nullptr) return {};
  std::vector<RecentCalls::Call> calls(RecentCalls::kKept);
  calls.resize(recent->read(calls));
  return calls;
}

std::vector<StartedCollective> SharedCalls::describe_all() const {
  std::vector<StartedCollective> all;
  for (const RecentCalls::Call& call : read()) {
    all.push_back({.call = describe(call), .ended = call.ended});
  }
  return all;
}

std::string describe(const RecentCalls::Call& call) {
  const std::string about = call.about[0] != 0 ? concat(" (", call.about.data(), ")") : "";
  const std::string number = call.sequence ? concat(" number ", *call.sequence) : "";
  return concat(call.operation.data(), number, " of group '", call.group.data(), "'", about);
}

}  // namespace lockstep::inline internal
