#include "tests/fuzz/recovery/passed_places.h"

#include <cstddef>
#include <utility>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"

namespace lockstep::testing {

PassedPlaces::Phase::Phase(PassedPlaces& places, std::string name)
    : places_(places), name_(std::move(name)), before_(failpoint_passes()) {}

PassedPlaces::Phase::~Phase() {
  places_.note(name_, before_);
}

void PassedPlaces::note(const std::string& phase, const std::vector<std::int64_t>& before) {
  const std::vector<std::int64_t> now = failpoint_passes();
  for (std::size_t index = 0; index < now.size(); ++index) {
    if (now[index] == before[index]) continue;
    ranges_[phase][std::string(kFailpoints[index].name)] +=
        concat(" ", before[index] + 1, "-", now[index]);
  }
}

std::vector<std::string> PassedPlaces::texts() const {
  PassedPlaces all = *this;
  all.note("run", std::vector<std::int64_t>(kFailpoints.size()));
  std::vector<std::string> texts;
  for (const auto& [phase, ranges] : all.ranges_) {
    std::string text;
    for (const auto& [name, passes] : ranges)
      text += concat(text.empty() ? "" : ",", " ", name, passes);
    texts.push_back(concat(phase, ":", text));
  }
  return texts;
}

}  // namespace lockstep::testing
