#include "lockstep/base/internal/text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <sstream>
#include <utility>

namespace lockstep::inline internal {
namespace {

// Slips that turn one into the other: letters put in, taken out or replaced, neighbours swapped.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  std::vector<std::size_t> above = row;
  std::vector<std::size_t> two_above = row;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    two_above = std::exchange(above, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], two_above[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

}  // namespace

std::string words_missing_in(const std::string& other, const std::string& text) {
  const std::vector<std::string> there = words_of(other);
  std::string missing;
  for (const std::string& word : words_of(text)) {
    if (std::ranges::find(there, word) != there.end()) continue;
    missing += concat(missing.empty() ? "" : " ", word);
  }
  return missing.empty() ? "nothing" : missing;
}

std::vector<std::string> comma_list(const std::string& text) {
  std::vector<std::string> entries;
  std::istringstream stream(text);
  for (std::string entry; std::getline(stream, entry, ',');) entries.push_back(entry);
  return entries;
}

std::string size_text(double bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  const int decimals = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f %s", decimals, bytes, kUnits.at(unit));
  return text;
}

std::optional<std::string> nearest_name(const std::string& name,
                                        const std::vector<std::string>& candidates) {
  if (name.empty()) return std::nullopt;
  std::optional<std::string> best;
  // A third of the letters wrong is a slip; more is another word.
  std::size_t best_distance = std::max<std::size_t>(1, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    if (name.size() >= 3 && candidate.starts_with(name)) return candidate;
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(const std::string& name, const std::vector<std::string>& candidates,
                         const std::string& prefix) {
  const auto nearest = nearest_name(name, candidates);
  return nearest ? concat("; did you mean ", prefix, *nearest, "?") : std::string();
}

}  // namespace lockstep::inline internal
