#pragma once

namespace lockstep::inline internal {

/// What this machine takes for the time, in microseconds since 1970: to be compared with that of
/// another, and told. Nothing is waited for by it.
double wall_clock_us();

}  // namespace lockstep::inline internal
