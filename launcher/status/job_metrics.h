#pragma once

#include <string>

#include "launcher/supervise/job_status.h"

namespace lockstep::inline internal {

/// Content type of metrics_of().
inline constexpr const char* kMetricsContentType =
    "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A job's status as OpenMetrics 1.0 (https://prometheus.io/docs/specs/om/open_metrics_spec/).
/// `now`: seconds since 1970.
std::string metrics_of(const JobStatus& status, double now);

}  // namespace lockstep::inline internal
