#pragma once

#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}

namespace lockstep::inline internal {

struct CollectiveName;

/// What the other ranks do when this rank's deadline expires.
struct HangReport {
  std::string text = {};        ///< "rank 2 waits in broadcast number 7, no report from rank 1"
  std::vector<int> ranks = {};  ///< ranks that are not in the same collective
};

/// Publishes, in the group's store, the collective in which this rank's deadline expired, and reads
/// the other ranks'. Waits briefly for ranks whose deadline expires about now, less if the launcher
/// has explained the hang. Empty if all ranks are in the same collective, or if the store is gone.
/// Never throws.
HangReport report_hang(const c10::intrusive_ptr<c10d::Store>& store, int world_size,
                       const CollectiveName& name, bool is_explained);

}  // namespace lockstep::inline internal
