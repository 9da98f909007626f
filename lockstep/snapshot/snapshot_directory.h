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
class GatheredState;
class StateCopy;
struct TakenState;
enum class StatePlacement : int;
}  // namespace internal

/// Options of SnapshotDirectory.
struct SnapshotDirectoryOptions {
  /// Number of complete snapshots to keep; at least 2, so that one may be damaged.
  int keep_last = 2;
  /// save() copies the state to CPU memory and returns; a thread writes the copy while training
  /// continues. There is at most one copy, which is reused: a save waits for the one before. With
  /// one copy per machine save() does not copy parameters and optimizer state: steps keep what they
  /// overwrite until it is written. Call wait() before the program ends.
  bool asynchronous_saves = false;
  /// Each rank writes a shard of the tensors, and of a ShardedOptimizer its own state, into the
  /// snapshot's directory; rank 0 completes it with a manifest. Any number of ranks can load it,
  /// whatever this option says.
  bool sharded_saves = false;
  /// How long rank 0 waits for the other ranks' shards before it gives up the snapshot.
  std::chrono::milliseconds shard_timeout = std::chrono::minutes(10);
  /// The ranks of the job. Empty: the default group, or this process alone without one.
  ProcessGroup process_group = {};
};

/// Options of SnapshotDirectory::save.
struct SnapshotSaveOptions {
  /// Position of the run: the last completed epoch and step. A later snapshot must have a later
  /// epoch, or the same epoch and a later step.
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  /// The program's own tensors; rank 0's are saved.
  TensorDict extra = {};
  /// The program's own plain values: dicts, lists, numbers, strings, tensors (save.h). None: none.
  c10::IValue values = {};
  /// Whether a snapshot with these values belongs to this training run, although this process has
  /// not loaded it. Empty: it does not.
  std::function<bool(const c10::IValue& values)> is_of_this_run = {};
};

/// The snapshot that load_latest() loaded.
struct LoadedSnapshot {
  std::filesystem::path path;
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  TensorDict extra = {};
  c10::IValue values = {};
};

/// The snapshots of one training run: a file each, named by epoch and step, for Python's
/// torch.load; or a directory each if sharded. All ranks must see the directory.
///
/// ```cpp
/// SnapshotDirectory snapshots("runs/digits");
/// const auto resumed = snapshots.load_latest(*model, optimizer);
/// for (int epoch = resumed ? resumed->epoch + 1 : 0; epoch < epochs; ++epoch) {
///   …
///   snapshots.save(*model, optimizer, {.epoch = epoch, .step = step});
/// }
/// ```
///
/// A snapshot holds the module's parameters and buffers, the optimizer's state, and each rank's
/// random state (CPU, and the CUDA device of the module). A ShardedOptimizer is stored unsharded:
/// another number of ranks, or an unsharded optimizer, can load it.
///
/// Threads: call from the training thread.
/// Lifetime: keeps the process group alive. The destructor waits until this rank's file is written,
/// not for other ranks, and logs an error that no call has thrown.
class SnapshotDirectory {
 public:
  /// Errors: UsageError for keep_last below 2.
  explicit SnapshotDirectory(std::filesystem::path path,
                             const SnapshotDirectoryOptions& options = {});
  ~SnapshotDirectory();
  SnapshotDirectory(const SnapshotDirectory&) = delete;
  SnapshotDirectory& operator=(const SnapshotDirectory&) = delete;

  /// Claims the directory for this job during the life of this object; creates it if needed.
  /// Collective.
  /// Errors: on rank 0 UsageError that names the process that has claimed it, and SystemError;
  /// PeerFailed on the other ranks.
  void claim();

  /// Saves a snapshot, then deletes the oldest beyond keep_last. Creates the directory if needed.
  /// Collective: gathers random states and the state of a ShardedOptimizer; then rank 0 writes
  /// while the other ranks continue. The snapshot is on disk when the call returns on rank 0.
  /// Sharded: gathers no state, and returns when all ranks have written; an error on one rank is
  /// PeerFailed on the others.
  /// Asynchronous: not yet on disk when the call returns; the next save(), which then does nothing
  /// else, or wait() throws the errors of the write.
  /// Errors: SystemError on rank 0 (disk full, no permission), with earlier snapshots unchanged.
  /// UsageError for a negative epoch or step, for a value that cannot be stored, and for a
  /// directory that another job has claimed since. UsageError if the directory holds later
  /// snapshots (in a claimed directory: any) of another training run, unless load_latest() has
  /// returned, since this run would delete or resume them. Else as Work::wait.
  void save(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer,
            const SnapshotSaveOptions& options);

  /// Waits until saved snapshots are on disk. Not collective.
  /// Errors: those of an asynchronous save(), once, on the rank that has them.
  void wait();

  /// Loads the newest complete snapshot into module, optimizer and random generators: the same on
  /// all ranks, on all or none. Collective. Skips damaged snapshots with a warning that names file
  /// and reason. A rank beyond the saved number of ranks keeps its random state. Returns nullopt if
  /// there is no snapshot.
  /// `check`: inspects the snapshot before anything changes; if it throws on any rank, no rank
  /// loads.
  /// Errors: CorruptFile if there are snapshots and none is complete; UsageError if module or
  /// optimizer differ from the saved ones, or for a file of another program; SystemError for an
  /// unreadable directory; PeerFailed on ranks whose peers failed; else as Work::wait.
  std::optional<LoadedSnapshot> load_latest(
      torch::nn::Module& module, torch::optim::Optimizer& optimizer,
      const std::function<void(const LoadedSnapshot&)>& check = {});

  /// The same for a training run whose model no rank holds whole, for other parts of Lockstep.
  /// Collective to its end. Asynchronous: it takes what the rank writes into memory first.
  void save(internal::GatheredState& state, const SnapshotSaveOptions& options);
  std::optional<LoadedSnapshot> load_latest(
      internal::GatheredState& state, const std::function<void(const LoadedSnapshot&)>& check = {});

  /// Reads the newest complete snapshot, chosen as by load_latest(); nullopt if there is none. Not
  /// collective.
  /// Errors: CorruptFile if none is complete; SystemError for an unreadable directory.
  std::optional<Snapshot> read_latest() const;

  /// The newest snapshot by name, which may be damaged; nullopt if there is none. Not collective.
  /// Errors: SystemError for an unreadable directory.
  std::optional<SnapshotName> newest() const;

  /// The directory.
  const std::filesystem::path& path() const { return path_; }

 private:
  /// Snapshots from the newest on, until `read` throws nothing of the first that can be used.
  std::optional<SnapshotName> choose(
      const std::function<void(const std::filesystem::path&)>& read) const;
  /// The file that rank 0 chooses, on every rank; empty: there is none.
  std::string choose_for_all(const std::function<void(const std::filesystem::path&)>& read);
  void check_may_save(const SnapshotName& name, const SnapshotSaveOptions& options);
  /// What all ranks contribute, and the program's values.
  Snapshot begin_snapshot(const std::optional<c10::Device>& device,
                          const SnapshotSaveOptions& options);
  void write_file(const SnapshotName& name, c10::IValue value);
  void save_sharded(Snapshot snapshot, internal::StatePlacement placement,
                    const internal::GatheredState* gathered);
  /// Throws on all ranks if the last asynchronous save failed on any.
  void agree_on_writes();
  /// Writes a state, whose absent tensors it gathers while it writes.
  using WriteState = std::function<void(const internal::TakenState&, const std::stop_token&)>;
  /// Runs the action here, or in the background on what `value` is now: on a copy of those of its
  /// tensors that somebody else has, too.
  void write(c10::IValue value, const WriteState& action);
  void written(const SnapshotName& name);

  std::filesystem::path path_;
  int keep_last_;
  bool asynchronous_;
  bool sharded_;
  std::chrono::milliseconds shard_timeout_;
  ProcessGroup group_;
  std::shared_ptr<DirectoryLock> lock_;  ///< of rank 0
  bool is_claimed_ = false;
  /// Later snapshots in the directory are known to be of this run.
  bool knows_later_ = false;
  /// Snapshots that this object wrote or verified. The thread of writing_ owns it while it runs.
  std::set<SnapshotName> whole_;
  std::unique_ptr<StateCopy> copy_;
  std::unique_ptr<BackgroundTask> writing_;  // Last: its thread ends before the other members.
};

}  // namespace lockstep
