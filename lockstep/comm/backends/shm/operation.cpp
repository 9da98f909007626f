#include "lockstep/comm/backends/shm/operation.h"

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::shm {

void Operation::set_name(std::string_view name) {
  call_.set_name(name);
  name_ = call_name(name);
}

void Operation::write_call(Team& team) const {
  team.entry_to_post().call = call_;
  if (call_.has_name()) team.name_round(name_);
}

bool Operation::all_called(Team& team, std::uint32_t round) {
  if (!team.all_posted(round)) return false;
  if (agreed_) return true;
  for (int rank = 0; rank < team.ranks(); ++rank) {
    const Call& theirs = team.entry(rank, round).call;
    if (theirs == call_) continue;
    throw UsageError(concat("rank ", team.number_of(rank), " called ",
                            describe(theirs, team.name_of(rank, round)), ", this rank ",
                            describe(call_, name_),
                            "; make the same calls in the same order on every rank"));
  }
  agreed_ = true;
  return true;
}

}  // namespace lockstep::shm
