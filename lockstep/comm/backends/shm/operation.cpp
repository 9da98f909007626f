#include "lockstep/comm/backends/shm/operation.h"

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"

namespace lockstep::shm {

bool Operation::all_called(Team& team, std::uint32_t round) {
  if (!team.all_posted(round)) return false;
  if (agreed_) return true;
  for (int rank = 0; rank < team.ranks(); ++rank) {
    const Call& theirs = team.entry(rank, round).call;
    if (theirs == call_) continue;
    throw UsageError(concat("rank ", team.number_of(rank), " called ", describe(theirs),
                            ", this rank ", describe(call_),
                            "; make the same calls in the same order on every rank"));
  }
  agreed_ = true;
  return true;
}

}  // namespace lockstep::shm
