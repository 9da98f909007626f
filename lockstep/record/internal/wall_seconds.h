#pragma once

namespace lockstep::inline internal {

/// What this machine takes for the time, in seconds since 1970: to be told, not to be waited by.
double wall_seconds();

}  // namespace lockstep::inline internal
