#pragma once

namespace lockstep::inline internal {

struct CollectiveName;

/// Shares this process's last collectives with the launcher that started it, if any, which can read
/// them at any time, also after the process has ended. Further calls have no effect. Never throws;
/// without them the launcher reports less.
void show_recent_calls_to_launcher() noexcept;

/// Notifies the launcher that this collective's deadline has expired: it reads the stacks of its
/// ranks and reports the late one. Returns whether it has done so within half a second. Never
/// throws; no effect without a launcher.
bool notify_launcher_of_late_rank(const CollectiveName& name) noexcept;

}  // namespace lockstep::inline internal
