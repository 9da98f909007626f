#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "launcher/supervise/job_status.h"

namespace lockstep::inline internal {

/// As JSON (RFC 8259): numbers and texts in a fixed schema; docs/launcher.md lists it.
std::string to_json(const JobStatus& status);

/// Of a launcher that does not answer, in its place: {"pid": 42, "trouble": "does not answer"}.
std::string trouble_json(pid_t pid, const std::string& trouble);

/// Nothing for anything else than a status.
std::optional<JobStatus> parse_status(std::string_view text);

}  // namespace lockstep::inline internal
