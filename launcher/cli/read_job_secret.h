#pragma once

#include <string>

namespace lockstep::inline internal {

/// The shared secret of a job's machines: the content of `file` (--secret-file), or
/// LOCKSTEP_JOB_SECRET if `file` is empty; empty: none.
/// Errors: UsageError, SystemError.
std::string read_job_secret(const std::string& file);

}  // namespace lockstep::inline internal
