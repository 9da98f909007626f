#pragma once

namespace lockstep::inline internal {

/// From now on a crash of this process (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, or an uncaught
/// exception) writes a report to the launcher's error file (TORCHELASTIC_ERROR_FILE, in torchrun's
/// schema). The report has the cause, the return addresses of the thread's stack, which the
/// launcher resolves, and the last collectives. Then the process ends as it would have without a
/// report.
/// No effect without an error file, for a signal for which the process already has a handler, and
/// on further calls. A process forked from this one writes no report.
/// Threads: any. A stack overflow is reported only for the first thread that calls this.
void report_crashes() noexcept;

/// The error file now has an error: a crash during exit must not replace it.
void keep_error_file() noexcept;

}  // namespace lockstep::inline internal
