#pragma once

namespace lockstep::inline internal {

struct CollectiveName;

/// Lets the launcher that started this process, if one did, read its last collectives at any time,
/// also after the process has ended. Once; further calls do nothing. Never throws: a launcher that
/// does not know them says less.
void show_recent_calls_to_launcher() noexcept;

/// The deadline of this collective has passed: the launcher looks where its ranks are, and says so.
/// Returns when it has looked, or after half a second: whether it has. Never throws; does nothing
/// without a launcher.
bool tell_launcher_of_late_rank(const CollectiveName& name) noexcept;

}  // namespace lockstep::inline internal
