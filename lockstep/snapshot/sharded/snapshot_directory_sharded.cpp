// How a SnapshotDirectory saves where each rank writes a share.
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/random_id.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/comm/internal/store_wait.h"
#include "lockstep/os/process/background_task.h"
#include "lockstep/snapshot/internal/gathered_state.h"
#include "lockstep/snapshot/internal/state_copy.h"
#include "lockstep/snapshot/pickle/pickled.h"
#include "lockstep/snapshot/sharded/sharded_snapshot.h"
#include "lockstep/snapshot/sharded/share_tree.h"
#include "lockstep/snapshot/snapshot.h"
#include "lockstep/snapshot/snapshot_directory.h"

namespace lockstep {
namespace {

std::string hex(std::int64_t number) {
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(number));
  return digits;
}

void drop_error(BackgroundTask& task) {
  try {
    task.wait();
  } catch (const std::exception&) {
    // Said elsewhere.
  }
}

}  // namespace

void SnapshotDirectory::save_sharded(Snapshot snapshot, StatePlacement placement,
                                     const GatheredState* gathered) {
  if (asynchronous_) agree_on_writes();
  const int rank = group_rank(group_);
  std::vector<std::string> model_names;
  for (const auto& [name, tensor] : snapshot.model) model_names.push_back(name);
  if (rank != 0) snapshot.random_state = snapshot.cuda_random_state = {};

  const auto all = gather_rows(group_, {static_cast<std::int64_t>(random_number()),
                                        static_cast<std::int64_t>(own_bytes(snapshot, placement))});
  std::vector<std::uint64_t> kept_bytes;
  for (const auto& row : all) kept_bytes.push_back(static_cast<std::uint64_t>(row[1]));
  const SnapshotName name{snapshot.epoch, snapshot.step, true};
  const ShardedSave save{.directory = path_ / name.file_name(),
                         .save_id = hex(all[0][0]),
                         .epoch = snapshot.epoch,
                         .step = snapshot.step,
                         .world_size = group_world_size(group_)};
  const std::vector<int> owners = plan_shares(replicated_bytes(snapshot, placement), kept_bytes);
  c10::IValue share =
      share_value(share_of(std::move(snapshot), placement, owners, rank), save.save_id);
  const auto complete = [this, save, name, model_names](const std::stop_token& stop) {
    complete_sharded(save, model_names, Deadline::after(shard_timeout_), stop);
    written(name);
  };
  if (asynchronous_) {
    if (gathered != nullptr) share = with_whole_tensors(share, *gathered);
    const auto write_and_complete = [save, rank, complete](const TakenState& state,
                                                           const std::stop_token& stop) {
      write_share(save, rank, state.tree, state.gather);
      if (rank == 0) complete(stop);
    };
    // What cannot be stored ends it on all ranks before any waits for the others' files.
    run_on_all(group_, "save a snapshot", [&] { writable_value(share); });
    write(std::move(share), write_and_complete);
    return;
  }
  run_on_all(group_, "save a snapshot", [&] {
    if (gathered == nullptr) return write_share(save, rank, share);
    gather_while(*gathered,
                 [&](const GatherWhole& gather) { write_share(save, rank, share, gather); });
  });
  run_on_all(group_, "complete a snapshot", [&] {
    if (rank == 0) complete(std::stop_token());
  });
}

void SnapshotDirectory::agree_on_writes() {
  const int rank = group_rank(group_);
  // Rank 0 last: it waits for the files of the others, in vain where one of them has failed.
  if (rank != 0) writing_->finish();
  std::vector<int> failed = failed_ranks(group_, rank != 0 && writing_->has_failed());
  if (rank == 0) {
    if (!failed.empty()) writing_->request_stop();
    writing_->finish();
  }
  const std::vector<int> failed_rank_0 = failed_ranks(group_, rank == 0 && writing_->has_failed());
  if (failed.empty()) failed = failed_rank_0;
  if (failed.empty()) return;
  // Where others have failed, what rank 0 has to say is that it waited for them.
  if (rank == 0 && failed != failed_rank_0) {
    drop_error(*writing_);
  } else {
    writing_->wait();
  }
  throw PeerFailed(
      {.operation = "save a snapshot", .ranks = failed},
      concat("the one before failed on rank ", join_numbers(failed), "; see the message there"));
}

}  // namespace lockstep
