#include "lockstep/comm/internal/launcher_notice.h"

#include <chrono>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "diagnose/capture/recent_calls.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/comm/internal/work_state.h"
#include "lockstep/job/internal/worker_link.h"
#include "lockstep/job/internal/worker_message.h"
#include "lockstep/os/memory/futex.h"
#include "lockstep/os/memory/memory_file.h"

namespace lockstep::inline internal {
namespace {

constexpr std::chrono::milliseconds kLook{500};

}  // namespace

void show_recent_calls_to_launcher() noexcept try {
  static const bool shown = [] {
    const int link = inherited_worker_link();
    if (link < 0) return false;
    const UniqueFd file = make_memory_file("lockstep_calls", sizeof(RecentCalls));
    // Never unmapped: collectives may be started as long as the process lives.
    static const SharedMapping& mapping = *new SharedMapping(file.get(), sizeof(RecentCalls));
    mapping.populate(0, mapping.bytes());
    keep_recent_calls_in(*new (mapping.data()) RecentCalls);
    return send_message(link, CallsFile{}, file.get());
  }();
  static_cast<void>(shown);
} catch (const std::exception&) {
  // No memory to be had.
}

bool notify_launcher_of_late_rank(const CollectiveName& name) noexcept try {
  const int link = inherited_worker_link();
  if (link < 0) return false;
  std::atomic<std::uint32_t>& looks = recent_calls().looks();
  const std::uint32_t before = looks;
  const bool told = send_message(link, DeadlineExpired{.operation = name.operation,
                                                       .group = name.group,
                                                       .sequence = name.sequence,
                                                       .waited = name.timeout});
  // Else this one is on its way out before it has been seen to wait.
  const Deadline deadline = Deadline::after(kLook);
  while (told && looks == before && !deadline.passed()) {
    futex_wait(looks, before, deadline.remaining());
  }
  return looks != before;
} catch (const std::exception&) {
  return false;  // Out of memory.
}

}  // namespace lockstep::inline internal
