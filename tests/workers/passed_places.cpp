#include "tests/workers/passed_places.h"

#include <cstddef>
#include <utility>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"

namespace lockstep::testing {

// So that a line is written at once, in one piece among those of other processes.
constexpr std::size_t kMostRanges = 100;

PassedPlaces::Phase::Phase(PassedPlaces& places, std::string name)
    : places_(places), name_(std::move(name)), before_(failpoint_passes()) {}

PassedPlaces::Phase::~Phase() {
  places_.note(name_, before_);
}

void PassedPlaces::note(const std::string& phase, const std::vector<std::int64_t>& before) {
  const std::vector<std::int64_t> now = failpoint_passes();
  for (std::size_t index = 0; index < now.size(); ++index) {
    if (now[index] == before[index]) continue;
    ranges_[phase][std::string(kFailpoints[index].name)].push_back(
        concat(" ", before[index] + 1, "-", now[index]));
  }
}

std::vector<std::string> PassedPlaces::texts() const {
  PassedPlaces all = *this;
  all.note("run", std::vector<std::int64_t>(kFailpoints.size()));
  std::vector<std::string> texts;
  for (const auto& [phase, ranges] : all.ranges_) {
    for (const auto& [name, passes] : ranges) {
      std::string text = concat(phase, ": ", name);
      const std::size_t every = passes.size() / kMostRanges + 1;
      for (std::size_t at = 0; at < passes.size(); at += every) text += passes[at];
      texts.push_back(text);
    }
  }
  return texts;
}

}  // namespace lockstep::testing
