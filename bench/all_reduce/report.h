#pragma once

#include <string>

#include "bench/all_reduce/result.h"

namespace lockstep::bench {

/// For people: for each placement sizes down, subjects across.
std::string report_table(const Report& report);

/// For machines: {"benchmark", "ranks", ..., "rows": [...], "limits": [...]}.
std::string report_json(const Report& report);

}  // namespace lockstep::bench
