#pragma once

#include <string>

namespace lockstep::inline internal {

/// A number of bytes in three digits and decimal units: "512 B", "46.8 MB", "1.98 GB".
std::string size_text(double bytes);

}  // namespace lockstep::inline internal
