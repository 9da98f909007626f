#include "lockstep/os/machine/cpu_list.h"

#include <algorithm>

#include "lockstep/base/internal/parse_number.h"

namespace lockstep::inline internal {
namespace {

void add_range(std::string_view range, std::vector<int>& cpus) {
  // More than any machine has: a file that is something else makes no endless list.
  constexpr int kTooMany = 65536;
  const auto dash = range.find('-');
  const auto first = parse_number<int>(range.substr(0, dash));
  const auto last =
      dash == std::string_view::npos ? first : parse_number<int>(range.substr(dash + 1));
  if (!first || !last || *first < 0 || *last >= kTooMany) return;
  for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
}

}  // namespace

std::vector<int> parse_cpu_list(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n";
  std::vector<int> cpus;
  while (!text.empty()) {
    const auto comma = std::min(text.find(','), text.size());
    std::string_view range = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    range.remove_prefix(std::min(range.find_first_not_of(kSpace), range.size()));
    add_range(range.substr(0, range.find_last_not_of(kSpace) + 1), cpus);
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

}  // namespace lockstep::inline internal
