#pragma once

#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}

namespace lockstep::inline internal {

struct CollectiveName;

/// What the other ranks are in while this one waits past its deadline.
struct HangReport {
  std::string text = {};        ///< "rank 2 waits in broadcast number 7, no report from rank 1"
  std::vector<int> ranks = {};  ///< that are not in the same collective
};

/// Tells the other ranks of the group, through its store, in which collective this rank's deadline
/// has passed, and finds out in which theirs has. Gives ranks whose deadline passes about now time
/// to say so, less where the launcher has explained it already. Empty where all are in the same
/// collective, or where the store is gone. Never throws.
HangReport report_hang(const c10::intrusive_ptr<c10d::Store>& store, int world_size,
                       const CollectiveName& name, bool is_explained);

}  // namespace lockstep::inline internal
