#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/train/callbacks.h"

namespace lockstep {

StepRange StepRange::parse(const std::string& text, const std::string& what) {
  const std::size_t colon = text.find(':');
  if (colon != std::string::npos) {
    const auto first = parse_number<std::int64_t>(std::string_view(text).substr(0, colon));
    const auto end = parse_number<std::int64_t>(std::string_view(text).substr(colon + 1));
    if (first && end && 1 <= *first && *first < *end) return {.first = *first, .end = *end};
  }
  throw UsageError(concat(what, " is '", text,
                          "'; give the first step, from 1, and the one after the last, as in 10:13 "
                          "for steps 10, 11 and 12"));
}

}  // namespace lockstep
