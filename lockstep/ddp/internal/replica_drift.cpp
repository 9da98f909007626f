#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "lockstep/base/internal/concat.h"
#include "lockstep/ddp/internal/fingerprint.h"

namespace lockstep::inline internal {
namespace {

// What one line can name.
constexpr std::size_t kMostRanksNamed = 8;

// The rank whose replica most ranks have.
std::size_t reference_rank(const std::vector<Fingerprints>& ranks) {
  std::size_t reference = 0;
  std::ptrdiff_t most = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::ptrdiff_t alike = std::count(ranks.begin(), ranks.end(), ranks[rank]);
    if (alike > most) reference = rank;
    most = std::max(most, alike);
  }
  return reference;
}

// Names in the order of the reference, then those that it does not have.
std::vector<std::string> differing_names(const Fingerprints& reference, const Fingerprints& other) {
  std::unordered_map<std::string, std::uint64_t> unmatched;
  for (const auto& [name, hash] : other) unmatched.emplace(name, hash);
  std::vector<std::string> names;
  for (const auto& [name, hash] : reference) {
    const auto found = unmatched.find(name);
    if (found == unmatched.end() || found->second != hash) names.push_back(name);
    if (found != unmatched.end()) unmatched.erase(found);
  }
  for (const auto& [name, hash] : other) {
    if (unmatched.contains(name)) names.push_back(name);
  }
  return names;
}

std::string describe_difference(const std::vector<std::string>& names) {
  if (names.empty()) return "in the order of its tensors";
  std::string text = concat("in '", names[0], "'");
  if (names.size() > 1) text += concat(" and ", names.size() - 1, " more");
  return text;
}

std::string list_ranks(const std::vector<std::size_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostRanksNamed); ++i) {
    text += concat(i == 0 ? " " : ", ", ranks[i]);
  }
  if (ranks.size() > kMostRanksNamed)
    text += concat(" and ", ranks.size() - kMostRanksNamed, " more");
  return text;
}

}  // namespace

std::string describe_drift(const std::vector<Fingerprints>& ranks) {
  const Fingerprints& reference = ranks[reference_rank(ranks)];
  std::vector<std::size_t> alike;
  std::vector<std::size_t> drifted;
  std::string differences;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    (ranks[rank] == reference ? alike : drifted).push_back(rank);
    if (ranks[rank] == reference || drifted.size() > kMostRanksNamed) continue;
    differences += concat(differences.empty() ? "" : ", ", "rank ", rank, " ",
                          describe_difference(differing_names(reference, ranks[rank])));
  }
  return concat("check_replicas_agree: ", list_ranks(drifted), " drifted from ", list_ranks(alike),
                ": ", differences, " (of ", reference.size(),
                "); resume from the last snapshot, and find what only ", list_ranks(drifted),
                " did: a write to a tensor outside the optimizer's step, other settings, "
                "random numbers, faulty hardware");
}

}  // namespace lockstep::inline internal
