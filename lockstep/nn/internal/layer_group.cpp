#include "lockstep/nn/internal/layer_group.h"

#include <algorithm>
#include <numeric>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/internal/exchange_values.h"

namespace lockstep::inline internal {
namespace {

// Layer groups by the backend of their parent: it is another one for each group of several ranks.
struct LayerGroups {
  struct Entry {
    c10::weak_intrusive_ptr<c10d::Backend> parent;  // null: a group of one rank
    std::weak_ptr<LayerGroup> group;
    bool is_of_default = false;
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
    entries.push_back({.parent = c10::weak_intrusive_ptr<c10d::Backend>(backend),
                       .group = group,
                       .is_of_default = is_default(parent)});
  }

  static bool is_default(const ProcessGroup& parent) {
    const ProcessGroup common = group_or_default({});
    return common && common.c10d_backend() == parent.c10d_backend();
  }

  // That of the default group, of which it becomes that of `parent`.
  std::shared_ptr<LayerGroup> move_to(const ProcessGroup& parent) {
    const MutexLock lock(mutex);
    std::erase_if(entries, [](const Entry& entry) { return entry.group.expired(); });
    for (Entry& entry : entries) {
      if (!entry.is_of_default) continue;
      entry.parent = c10::weak_intrusive_ptr<c10d::Backend>(parent.c10d_backend());
      return entry.group.lock();
    }
    return nullptr;
  }
};

LayerGroups& layer_groups() {
  static LayerGroups instance;
  return instance;
}

std::vector<int> all_ranks(const ProcessGroup& group) {
  std::vector<int> ranks(static_cast<std::size_t>(group.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

bool needs_layer_group(const ProcessGroup& parent) {
  return parent.world_size() > 1 || env::integer(env::kMaxRestarts).value_or(0) > 0;
}

void regroup_layers(const ProcessGroup& parent) {
  const std::shared_ptr<LayerGroup> layers = layer_groups().move_to(parent);
  if (!layers) return;
  layers->group = parent.world_size() == 1 ? parent : parent.new_group(all_ranks(parent));
}

std::shared_ptr<LayerGroup> layer_group(const ProcessGroup& parent) {
  if (parent.world_size() == 1) {
    if (const auto known = layer_groups().find(parent)) return known;
    const auto made = std::make_shared<LayerGroup>(LayerGroup{.group = parent});
    layer_groups().put(parent, made);
    return made;
  }
  // A rank may have let go of its layers sooner than another.
  const std::shared_ptr<LayerGroup> known = layer_groups().find(parent);
  const auto rows = gather_rows(parent, {known ? 1 : 0});
  const bool known_to_all =
      std::all_of(rows.begin(), rows.end(), [](const auto& row) { return row[0] == 1; });
  if (known_to_all) return known;
  auto made =
      std::make_shared<LayerGroup>(LayerGroup{.group = parent.new_group(all_ranks(parent))});
  layer_groups().put(parent, made);
  return made;
}

}  // namespace lockstep::inline internal
