#pragma once

namespace lockstep::inline internal {

/// Writes out what was printed to stdout. Errors: Error when not all of it could be written: a
/// full disk, for example.
void finish_output();

}  // namespace lockstep::inline internal
