#pragma once

#include <string>

namespace lockstep::inline internal {

/// By which the machines of a job know each other: the content of `file` (--secret-file), or, where
/// that is empty, LOCKSTEP_JOB_SECRET; empty: there is none. Errors: UsageError, SystemError.
std::string read_job_secret(const std::string& file);

}  // namespace lockstep::inline internal
