// How a SnapshotDirectory saves and loads a training of which each rank has pieces.
#include <memory>
#include <string>
#include <utility>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/os/process/background_task.h"
#include "lockstep/snapshot/internal/gathered_state.h"
#include "lockstep/snapshot/internal/random_state.h"
#include "lockstep/snapshot/internal/saved_file.h"
#include "lockstep/snapshot/internal/snapshot_list.h"
#include "lockstep/snapshot/internal/snapshot_outline.h"
#include "lockstep/snapshot/sharded/share_tree.h"
#include "lockstep/snapshot/snapshot_directory.h"

namespace lockstep {
namespace {

std::optional<c10::Device> device_of(const ProcessGroup& group) {
  if (group && group.device().is_cuda()) return group.device();
  return std::nullopt;
}

}  // namespace

void SnapshotDirectory::save(GatheredState& state, const SnapshotSaveOptions& options) {
  Snapshot snapshot = begin_snapshot(device_of(group_), options);
  failpoint("save.gathered");
  snapshot.model = state.model();
  snapshot.optimizer = state.optimizer();
  if (sharded_) return save_sharded(std::move(snapshot), StatePlacement::kReplicated, &state);
  const SnapshotName name{options.epoch, options.step};
  const bool writes = group_rank(group_) == 0;
  c10::IValue value = writes ? snapshot_value(snapshot) : c10::IValue();
  if (asynchronous_) {
    value = with_whole_tensors(value, state);
    if (writes) write_file(name, std::move(value));
    return;
  }
  gather_while(state, [&](const GatherWhole& gather) {
    if (!writes) return gather([](const at::Tensor&, const std::function<at::Tensor()>&) {});
    make_snapshot_directory(path_);
    save_file(path_ / name.file_name(), value, {}, gather);
  });
  if (!writes) return;
  failpoint("save.written");
  written(name);
}

std::optional<LoadedSnapshot> SnapshotDirectory::load_latest(
    GatheredState& state, const std::function<void(const LoadedSnapshot&)>& check) {
  std::unique_ptr<SnapshotOutline> outline;
  const auto open = [&](const std::filesystem::path& path) {
    outline = std::make_unique<SnapshotOutline>(path);
  };
  const std::string file_name = choose_for_all(open);
  if (file_name.empty()) return std::nullopt;

  const std::filesystem::path file = path_ / file_name;
  const std::string source = file.string();
  const OwnRandomState random(group_rank(group_), device_of(group_));
  LoadedSnapshot resumed{.path = file};
  run_on_all(group_, concat("load ", source), [&] {
    if (!outline) open(file);
    const Snapshot& snapshot = outline->snapshot();
    state.read(
        snapshot, [&](const at::Tensor& absent) { return outline->read(absent); }, source);
    random.check(snapshot);
    resumed.epoch = snapshot.epoch;
    resumed.step = snapshot.step;
    resumed.extra = snapshot.extra;
    resumed.values = snapshot.values;
    if (check) check(resumed);
  });
  knows_later_ = true;

  state.take_over();
  random.set(outline->snapshot());
  whole_.insert(*SnapshotName::parse(file_name));
  return resumed;
}

}  // namespace lockstep
