#include "lockstep/parameter_server/internal/trainer_watch.h"

namespace lockstep::parameter_server::inline internal {

std::optional<int> TrainerWatch::find_silent(const std::vector<Heard>& heard, Instant now) {
  last_.resize(heard.size());
  std::optional<int> silent;
  for (std::size_t trainer = 0; trainer < heard.size(); ++trainer) {
    Last& last = last_[trainer];
    if (heard[trainer].waits || heard[trainer].signs != last.signs) {
      last = {heard[trainer].signs, now};
    } else if (!silent && now - last.instant > limit_) {
      silent = static_cast<int>(trainer);
    }
  }
  return silent;
}

}  // namespace lockstep::parameter_server::inline internal
