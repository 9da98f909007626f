#pragma once

namespace lockstep::inline internal {

/// From now on a crash of this process leaves a report in the launcher's error file
/// (TORCHELASTIC_ERROR_FILE, torchrun's schema): SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, and an
/// exception that nobody catches. The report tells the cause, the addresses of the calls that the
/// thread was in, for the launcher to give them names, and the last collectives. Then the process
/// ends as it would have without.
/// Does nothing where there is no such file, for a signal on which the process does something
/// already, and when called again. A process forked from this one has no report.
/// Threads: any. A stack that overflows is reported of the first thread that calls this.
void report_crashes() noexcept;

/// The error file tells an error by now: a crash on the way out is not to take its place.
void keep_error_file() noexcept;

}  // namespace lockstep::inline internal
