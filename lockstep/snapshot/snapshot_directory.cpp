#include "lockstep/snapshot/snapshot_directory.h"

#include <system_error>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/os/files/directory_lock.h"
#include "lockstep/os/process/background_task.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/internal/random_state.h"
#include "lockstep/snapshot/internal/saved_file.h"
#include "lockstep/snapshot/internal/snapshot_list.h"
#include "lockstep/snapshot/internal/snapshot_outline.h"
#include "lockstep/snapshot/internal/state_copy.h"
#include "lockstep/snapshot/pickle/pickled.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/sharded/sharded_snapshot.h"
#include "lockstep/snapshot/sharded/share_tree.h"
#include "lockstep/snapshot/snapshot.h"
#include "lockstep/snapshot/state_dict.h"

namespace lockstep {
namespace {

/// The CUDA device that the module is on, if it is on one.
std::optional<c10::Device> cuda_device(const torch::nn::Module& module) {
  for (const auto& [name, tensor] : state_dict(module)) {
    if (tensor.is_cuda()) return tensor.device();
  }
  return std::nullopt;
}

// None where the directory cannot be read: the write will say why.
std::vector<SnapshotName> snapshots_in(const std::filesystem::path& directory) {
  try {
    return list_snapshots(directory).present;
  } catch (const SystemError&) {
    return {};
  }
}

// Reads all bytes to verify them, and holds no tensor.
bool can_be_loaded(const std::filesystem::path& path) {
  try {
    const SnapshotOutline outline(path);
  } catch (const Error&) {
    return false;
  }
  return true;
}

// Whether it can be loaded, and is of a run that has not asked for it.
bool is_of_another_run(const std::filesystem::path& path, const SnapshotSaveOptions& options) {
  if (!options.is_of_this_run) return can_be_loaded(path);
  try {
    return !options.is_of_this_run(SnapshotOutline(path).snapshot().values);
  } catch (const Error&) {
    return false;
  }
}

// What rank 0 found, told to the others: the first character says what the rest is.
constexpr char kNothing = 'n';
constexpr char kChosen = 'c';
constexpr char kFailed = 'f';

}  // namespace

SnapshotDirectory::SnapshotDirectory(std::filesystem::path path,
                                     const SnapshotDirectoryOptions& options)
    : path_(std::move(path)),
      keep_last_(options.keep_last),
      asynchronous_(options.asynchronous_saves),
      sharded_(options.sharded_saves),
      shard_timeout_(options.shard_timeout),
      group_(group_or_default(options.process_group)),
      copy_(std::make_unique<StateCopy>()),
      writing_(std::make_unique<BackgroundTask>("save a snapshot in the background")) {
  if (keep_last_ < 2) {
    throw UsageError(concat("snapshots in ", path_, ": keep_last is ", keep_last_,
                            "; keep at least 2, so that one can be damaged"));
  }
}

SnapshotDirectory::~SnapshotDirectory() = default;

void SnapshotDirectory::wait() {
  writing_->wait();
}

void SnapshotDirectory::claim() {
  if (is_claimed_) return;
  run_on_all(group_, "claim the snapshot directory", [&] {
    if (group_rank(group_) == 0) lock_ = DirectoryLock::take(path_);
  });
  is_claimed_ = true;
}

// All ranks' first save is the same.
void SnapshotDirectory::check_may_save(const SnapshotName& name,
                                       const SnapshotSaveOptions& options) {
  if (knows_later_ && !is_claimed_) return;
  run_on_all(group_, "save a snapshot", [&] {
    if (group_rank(group_) != 0) return;
    if (lock_) lock_->check();
    if (knows_later_) return;
    for (const SnapshotName& there : snapshots_in(path_)) {
      // Earlier ones may be those of a program that saves by another object each time.
      if (!is_claimed_ && there <= name) break;
      if (!is_of_another_run(path_ / there.file_name(), options)) continue;
      throw UsageError(concat("save ", (path_ / name.file_name()).string(), ": the directory has ",
                              there.file_name(),
                              " of another run; load it to resume from it, or choose another "
                              "directory"));
    }
  });
  knows_later_ = true;
}

Snapshot SnapshotDirectory::begin_snapshot(const std::optional<c10::Device>& device,
                                           const SnapshotSaveOptions& options) {
  if (options.epoch < 0 || options.step < 0) {
    throw UsageError(concat("save a snapshot: epoch ", options.epoch, " and step ", options.step,
                            " must not be negative"));
  }
  failpoint("save.begin");
  check_may_save({options.epoch, options.step, sharded_}, options);
  Snapshot snapshot{.epoch = options.epoch, .step = options.step};
  snapshot.world_size = group_world_size(group_);
  snapshot.random_state = gather_from_all(group_, random_state(at::kCPU));
  if (device) snapshot.cuda_random_state = gather_from_all(group_, random_state(*device));
  if (group_rank(group_) == 0) {
    snapshot.extra = options.extra;
    snapshot.values = options.values;
  }
  return snapshot;
}

void SnapshotDirectory::save(const torch::nn::Module& module,
                             const torch::optim::Optimizer& optimizer,
                             const SnapshotSaveOptions& options) {
  Snapshot snapshot = begin_snapshot(cuda_device(module), options);
  const auto* sharded = dynamic_cast<const ShardedState*>(&optimizer);
  if (sharded && !sharded_) snapshot.optimizer = sharded->consolidated_state_dict(0);
  if (group_rank(group_) != 0 && !sharded_) return;

  failpoint("save.gathered");
  snapshot.model = state_dict(module);
  if (sharded_) {
    run_on_all(group_, "save a snapshot", [&] {
      // This rank's states, and all groups.
      snapshot.optimizer = optimizer_state_dict(optimizer, optimizer.state());
    });
    save_sharded(std::move(snapshot),
                 sharded ? StatePlacement::kSharded : StatePlacement::kReplicated, nullptr);
    return;
  }
  if (!sharded) snapshot.optimizer = optimizer_state_dict(optimizer);
  if (snapshot.optimizer.isNone()) {
    throw UsageError(
        "save a snapshot: rank 0 of the snapshots is not rank 0 of the sharded optimizer's group; "
        "give SnapshotDirectory the optimizer's group");
  }
  write_file({options.epoch, options.step}, snapshot_value(snapshot));
}

void SnapshotDirectory::write_file(const SnapshotName& name, c10::IValue value) {
  write(std::move(value), [this, name](const TakenState& state, const std::stop_token&) {
    make_snapshot_directory(path_);
    save_file(path_ / name.file_name(), state.tree, {}, state.gather);
    failpoint("save.written");
    written(name);
  });
}

void SnapshotDirectory::write(c10::IValue value, const WriteState& action) {
  if (!asynchronous_) {
    action({.tree = value}, std::stop_token());
    return;
  }
  writing_->wait();  // The one before, whose memory the copy takes.
  const c10::IValue writable = writable_value(std::exchange(value, c10::IValue()));
  writing_->start([action, state = copy_->take(writable)](const std::stop_token& stop) {
    action(state, stop);
  });
}

void SnapshotDirectory::written(const SnapshotName& name) {
  whole_.insert(name);
  const auto is_whole = [this](const SnapshotName& other) {
    if (whole_.count(other) != 0) return true;
    const bool is_good = can_be_loaded(path_ / other.file_name());
    if (is_good) whole_.insert(other);
    return is_good;
  };
  delete_surplus(path_, name, keep_last_, is_whole,
                 [this](const SnapshotName& deleted) { whole_.erase(deleted); });
}

std::string SnapshotDirectory::choose_for_all(
    const std::function<void(const std::filesystem::path&)>& read) {
  writing_->finish();  // Its error stays for wait(): here one rank alone would have it.
  std::string decision;
  std::exception_ptr failure;
  if (group_rank(group_) == 0) {
    try {
      const std::optional<SnapshotName> chosen = choose(read);
      decision = chosen ? kChosen + chosen->file_name() : std::string(1, kNothing);
    } catch (const std::exception& error) {
      decision = concat(kFailed, error.what());
      failure = std::current_exception();
    }
  }
  if (group_) decision = broadcast_text(group_, decision, 0);
  if (failure) std::rethrow_exception(failure);
  if (decision[0] == kFailed) {
    throw PeerFailed(concat("rank 0 failed to ", decision.substr(1)), {.ranks = {0}});
  }
  if (decision[0] == kNothing) knows_later_ = true;
  return decision.substr(1);
}

std::optional<LoadedSnapshot> SnapshotDirectory::load_latest(
    torch::nn::Module& module, torch::optim::Optimizer& optimizer,
    const std::function<void(const LoadedSnapshot&)>& check) {
  std::optional<Snapshot> snapshot;
  const std::string file_name =
      choose_for_all([&](const std::filesystem::path& path) { snapshot = load_snapshot(path); });
  if (file_name.empty()) return std::nullopt;

  const std::filesystem::path file = path_ / file_name;
  const std::string source = file.string();
  const OwnRandomState random(group_rank(group_), cuda_device(module));
  LoadedSnapshot resumed{.path = file};
  run_on_all(group_, concat("load ", source), [&] {
    if (!snapshot) snapshot = load_snapshot(file);
    check_state_dict(module, snapshot->model, source);
    check_optimizer_state_dict(optimizer, snapshot->optimizer, source);
    random.check(*snapshot);
    resumed.epoch = snapshot->epoch;
    resumed.step = snapshot->step;
    resumed.extra = std::move(snapshot->extra);
    resumed.values = snapshot->values;
    if (check) check(resumed);
  });
  knows_later_ = true;

  load_state_dict(module, snapshot->model, source);
  load_optimizer_state_dict(optimizer, snapshot->optimizer, source);
  random.set(*snapshot);
  whole_.insert(*SnapshotName::parse(file_name));
  return resumed;
}

std::optional<SnapshotName> SnapshotDirectory::newest() const {
  const std::vector<SnapshotName> names = list_snapshots(path_).present;
  return names.empty() ? std::nullopt : std::optional(names.front());
}

std::optional<Snapshot> SnapshotDirectory::read_latest() const {
  std::optional<Snapshot> snapshot;
  choose([&](const std::filesystem::path& path) { snapshot = load_snapshot(path); });
  return snapshot;
}

std::optional<SnapshotName> SnapshotDirectory::choose(
    const std::function<void(const std::filesystem::path&)>& read) const {
  const std::vector<SnapshotName> names = list_snapshots(path_).present;
  std::string newest_problem;
  const auto pass_over = [&](const SnapshotName& name, const Error& error) {
    log(LogLevel::kWarning,
        concat(error.what(), "; skipping ", name.file_name(), ", trying the previous snapshot"));
    if (newest_problem.empty()) newest_problem = error.what();
  };
  for (const SnapshotName& name : names) {
    try {
      read(path_ / name.file_name());
      return name;
    } catch (const CorruptFile& error) {
      pass_over(name, error);
    } catch (const SystemError& error) {
      pass_over(name, error);
    }
  }
  if (names.empty()) return std::nullopt;
  throw CorruptFile(concat("resume from ", path_, ": none of its ", names.size(),
                           " snapshots can be used; the newest: ", newest_problem,
                           "; to start afresh, choose an empty directory"));
}

}  // namespace lockstep
