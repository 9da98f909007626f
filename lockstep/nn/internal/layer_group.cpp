#include "lockstep/nn/internal/layer_group.h"

#include <algorithm>
#include <numeric>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/internal/exchange_values.h"

namespace lockstep::inline internal {
namespace {

// Layer groups by the backend of their parent: it is another one for each group of several ranks.
struct LayerGroups {
  struct Entry {
    c10::weak_intrusive_ptr<c10d::Backend> parent;
    std::weak_ptr<LayerGroup> group;
  };
  Mutex mutex;
  std::vector<Entry> entries LOCKSTEP_GUARDED_BY(mutex);

  std::shared_ptr<LayerGroup> find(const ProcessGroup& parent) {
    const MutexLock lock(mutex);
    std::erase_if(entries, [](const Entry& entry) { return entry.group.expired(); });
    for (const Entry& entry : entries) {
      if (entry.parent.lock() == parent.c10d_backend()) return entry.group.lock();
    }
    return nullptr;
  }

  void put(const ProcessGroup& parent, const std::shared_ptr<LayerGroup>& group) {
    const MutexLock lock(mutex);
    const auto backend = parent.c10d_backend();
    std::erase_if(entries, [&](const Entry& entry) { return entry.parent.lock() == backend; });
    entries.push_back({c10::weak_intrusive_ptr<c10d::Backend>(backend), group});
  }
};

LayerGroups& layer_groups() {
  static LayerGroups instance;
  return instance;
}

}  // namespace

std::shared_ptr<LayerGroup> layer_group(const ProcessGroup& parent) {
  if (parent.world_size() == 1) return std::make_shared<LayerGroup>(LayerGroup{.group = parent});
  // A rank may have let go of its layers sooner than another.
  const std::shared_ptr<LayerGroup> known = layer_groups().find(parent);
  const auto rows = gather_rows(parent, {known ? 1 : 0});
  const bool known_to_all =
      std::all_of(rows.begin(), rows.end(), [](const auto& row) { return row[0] == 1; });
  if (known_to_all) return known;
  std::vector<int> ranks(parent.world_size());
  std::iota(ranks.begin(), ranks.end(), 0);
  auto made = std::make_shared<LayerGroup>(LayerGroup{.group = parent.new_group(ranks)});
  layer_groups().put(parent, made);
  return made;
}

}  // namespace lockstep::inline internal
