#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/snapshot/snapshot.h"
#include "lockstep/snapshot/state_dict.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

inline namespace internal {
class BackgroundTask;
class DirectoryLock;
class StateCopy;
}  // namespace internal

struct SnapshotDirectoryOptions {
  /// How many whole snapshots to keep; at least 2, so that one can be damaged.
  int keep_last = 2;
  /// save() returns once it has copied the state into CPU memory, which it keeps for the next time,
  /// and a thread writes it while the training goes on. One copy at most: a save waits for the one
  /// before. Call wait() before the program ends.
  bool asynchronous = false;
  /// Each rank writes a share of the tensors into a directory of the snapshot, of a
  /// ShardedOptimizer its own state; a manifest that rank 0 writes last makes it one snapshot. Read
  /// as the others, by any number of ranks, whatever this says.
  bool sharded = false;
  /// How long rank 0 waits for the other ranks' shares before it gives the snapshot up.
  std::chrono::milliseconds share_timeout = std::chrono::minutes(10);
  /// The ranks of the run. Empty: the default group, else this one process.
  ProcessGroup process_group = {};
};

struct SaveOptions {
  /// Where the run is: what is done, not what comes next. Later snapshots must have a later epoch,
  /// or the same and a later step.
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  /// The program's own tensors, as rank 0 has them.
  TensorDict extra = {};
  /// And plain values: dicts, lists, numbers, strings, tensors (save.h). None: none.
  c10::IValue values = {};
  /// Whether a snapshot with such values is of this run though it was not loaded. Empty: none is.
  std::function<bool(const c10::IValue& values)> is_of_this_run = {};
};

/// What load_latest found.
struct Resumed {
  std::filesystem::path path;
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  TensorDict extra = {};
  c10::IValue values = {};
};

/// The snapshots of one run: one file each, named by epoch and step, readable by Python's
/// torch.load, or one directory each. All ranks must see the directory.
///
///   SnapshotDirectory snapshots("runs/digits");
///   const auto resumed = snapshots.load_latest(*model, optimizer);
///   for (int epoch = resumed ? resumed->epoch + 1 : 0; epoch < epochs; ++epoch) {
///     …
///     snapshots.save(*model, optimizer, {.epoch = epoch, .step = step});
///   }
///
/// A snapshot holds the module's parameters and buffers, the optimizer, and each rank's random
/// state (CPU, and the CUDA device that the module is on). A ShardedOptimizer is stored whole, and
/// can be loaded by another number of ranks, or by one that is not sharded.
/// Threads: the training thread. Lifetime: keeps the process group alive; the destructor waits
/// until this rank's file is written, not for other ranks, and logs an error which nobody took.
class SnapshotDirectory {
 public:
  /// Errors: UsageError for a keep_last below 2.
  explicit SnapshotDirectory(std::filesystem::path path,
                             const SnapshotDirectoryOptions& options = {});
  ~SnapshotDirectory();
  SnapshotDirectory(const SnapshotDirectory&) = delete;
  SnapshotDirectory& operator=(const SnapshotDirectory&) = delete;

  /// Collective: until this object goes no other job that claims the directory may have it. Makes
  /// the directory if need be. Errors: UsageError on rank 0, naming the process that has it;
  /// SystemError on rank 0; PeerFailed on the others.
  void claim();

  /// Collective: gathers the random states, and of a ShardedOptimizer the state; then rank 0 writes
  /// while the others go on. On disk when it returns on rank 0. Makes the directory if need be and
  /// deletes what keep_last leaves over. Sharded: gathers no state, and all ranks write before any
  /// returns; what fails on one is PeerFailed on the others. Errors: SystemError on rank 0 (disk
  /// full, no permission), with earlier snapshots as they were; UsageError for a negative epoch or
  /// step, what cannot be stored, a directory that another job has claimed since, and, unless
  /// load_latest() has returned, where there are later snapshots, in a claimed directory any, that
  /// is not of this run: those are of another, and would be resumed or deleted by this one; else as
  /// Work::wait. Asynchronous: not yet on disk when it returns; what goes wrong with that is thrown
  /// by the next save(), which then does nothing, or wait().
  void save(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer,
            const SaveOptions& options);

  /// Returns when what was saved is on disk. Not collective. Errors: those of an asynchronous
  /// save(), on the rank that has them, once.
  void wait();

  /// Collective: loads the newest whole snapshot into module, optimizer and random generators, the
  /// same on all ranks, on all or none. Damaged ones are passed over with a warning that names file
  /// and reason. A rank that the saving run did not have keeps its random state.
  /// Returns nothing when there is no snapshot. `check`: looks at what the snapshot holds before
  /// anything is changed; what it throws on any rank, no rank loads.
  /// Errors: CorruptFile when there are snapshots and none is whole; UsageError when module or
  /// optimizer differ from the saved ones, or for a file of another program; SystemError for an
  /// unreadable directory; PeerFailed on ranks whose peers failed; else as Work::wait.
  std::optional<Resumed> load_latest(torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                                     const std::function<void(const Resumed&)>& check = {});

  /// The newest whole snapshot, as load_latest chooses it; nothing when there is none. Not
  /// collective. Errors: CorruptFile when none is whole; SystemError for an unreadable directory.
  std::optional<Snapshot> read_latest() const;

  /// The newest by its name, which may be damaged; nothing when there is none. Not collective.
  /// Errors: SystemError for an unreadable directory.
  std::optional<SnapshotName> newest() const;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::optional<SnapshotName> choose(std::optional<Snapshot>& chosen) const;
  void check_may_save(const SnapshotName& name, const SaveOptions& options);
  void save_sharded(Snapshot snapshot, const torch::optim::Optimizer& optimizer);
  /// Throws on all ranks where an asynchronous save before failed on any.
  void agree_on_writes();
  /// Runs it here, or in the background with a copy of what `value` holds now.
  void write(const c10::IValue& value,
             const std::function<void(const c10::IValue&, const std::stop_token&)>& action);
  void written(const SnapshotName& name);

  std::filesystem::path path_;
  int keep_last_;
  bool asynchronous_;
  bool sharded_;
  std::chrono::milliseconds share_timeout_;
  ProcessGroup group_;
  std::shared_ptr<DirectoryLock> lock_;  ///< of rank 0
  bool is_claimed_ = false;
  /// Later snapshots that are there are none of another run.
  bool knows_later_ = false;
  /// Snapshots that this object wrote or verified. Of `writing_` while that is under way.
  std::set<SnapshotName> whole_;
  std::unique_ptr<StateCopy> copy_;
  std::unique_ptr<BackgroundTask> writing_;  // Ends before the others.
};

}  // namespace lockstep
