#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "launcher/supervise/job_status.h"

namespace lockstep::inline internal {

/// A status as JSON (RFC 8259) of a fixed schema, which docs/launcher.md lists.
std::string to_json(const JobStatus& status);

/// For a launcher that does not answer: {"pid": 42, "trouble": "does not answer"}.
std::string trouble_json(pid_t pid, const std::string& trouble);

/// Parses a status; nothing for other texts.
std::optional<JobStatus> parse_status(std::string_view text);

}  // namespace lockstep::inline internal
