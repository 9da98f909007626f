#include "launcher/command_line/flag_values.h"

#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/base/internal/text.h"

namespace lockstep::inline internal {
namespace {

// "from 1 to 4096", "from 0" where there is no other bound than the type's.
template <class Number>
std::string bounds(Number least, Number most, bool is_bounded) {
  return is_bounded ? concat("from ", least, " to ", most) : concat("from ", least);
}

}  // namespace

std::int64_t integer_of(const std::string& flag, const std::string& text, std::int64_t least,
                        std::int64_t most, const char* what) {
  const auto value = parse_number<std::int64_t>(text);
  if (value && *value >= least && *value <= most) return *value;
  const bool is_bounded = most != std::numeric_limits<int>::max();
  throw UsageError(
      concat(flag, "='", text, "': give ", what, " ", bounds(least, most, is_bounded)));
}

int int_of(const std::string& flag, const std::string& text, int least) {
  return static_cast<int>(integer_of(flag, text, least, std::numeric_limits<int>::max()));
}

std::vector<int> local_ranks_of(const std::string& flag, const std::string& text) {
  std::vector<int> ranks;
  for (const std::string& entry : comma_list(text)) {
    const auto rank = parse_number<int>(entry);
    if (!rank || *rank < 0) {
      throw UsageError(concat(flag, "='", text, "': give local ranks, as in 0,1"));
    }
    ranks.push_back(*rank);
  }
  return ranks;
}

std::chrono::milliseconds seconds_of(const std::string& flag, const std::string& text, double least,
                                     double most) {
  const auto seconds = parse_number<double>(text);
  if (!seconds || *seconds < least || *seconds > most) {
    throw UsageError(
        concat(flag, "='", text, "': give seconds ", bounds(least, most, most != kLongestSeconds)));
  }
  return std::chrono::milliseconds(std::llround(*seconds * 1000));
}

}  // namespace lockstep::inline internal
