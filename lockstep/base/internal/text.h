#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

/// The texts between commas: "a,,b" are three, "" is none; a trailing comma adds none.
std::vector<std::string> comma_list(const std::string& text);

/// Those words of `text`, between blanks, that `other` does not have; "nothing": all are there.
std::string words_missing_in(const std::string& other, const std::string& text);

/// A number of bytes with three digits and decimal units: "512 B", "46.8 MB", "1.98 GB".
std::string size_text(double bytes);

/// "1 worker", "2 workers".
template <class Number>
std::string count_text(Number count, const char* noun) {
  return concat(count, " ", noun, count == 1 ? "" : "s");
}

/// The candidate that `name` probably means: one that starts with it, else one with a small edit
/// distance. Empty: none.
std::optional<std::string> nearest_name(const std::string& name,
                                        const std::vector<std::string>& candidates);

/// "; did you mean <prefix><nearest>?", or "".
std::string did_you_mean(const std::string& name, const std::vector<std::string>& candidates,
                         const std::string& prefix = "");

}  // namespace lockstep::inline internal
