#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/parameter_server/client.h"
#include "lockstep/parameter_server/internal/calls.h"
#include "lockstep/parameter_server/internal/departures.h"
#include "lockstep/parameter_server/internal/parts.h"
#include "lockstep/parameter_server/internal/server_desk.h"
#include "lockstep/parameter_server/internal/shard.h"
#include "lockstep/parameter_server/internal/shard_plan.h"
#include "lockstep/parameter_server/internal/shard_snapshots.h"
#include "lockstep/recovery/internal/launcher_link.h"
#include "lockstep/rpc/rpc.h"

/// Training by parameter servers: some ranks keep the parameters and update them, the others train
/// (Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014).
namespace lockstep::parameter_server {

struct TrainingOptions {
  /// So many ranks are servers, at first the lowest; all others are trainers.
  int servers = 1;
  /// Unset: synchronous, each step is one update by the mean of all trainers' gradients, with the
  /// same bits in every run. Else each trainer's gradients are an update of their own, and no
  /// trainer is more than so many steps before the slowest; a step during which a process dies may
  /// then be made twice on some servers.
  std::optional<std::int64_t> staleness = std::nullopt;
  /// How ranks meet. Its timeout is also that of calls, and of steps: a trainer that has not called
  /// a server for so long counts as stuck.
  InitOptions init = {};
  /// Where servers write snapshots of their shards; empty: nowhere. A job that is started again
  /// goes on from them, and so do servers that take a lost one's place.
  std::string snapshots = {};
  /// After so many updates.
  std::int64_t snapshot_every = 100;
};

/// The same program on all ranks:
///
///   parameter_server::Training training({.parameters = net->parameters(), .optimizer = …},
///                                       {.servers = 2});
///   training.run(steps, [&](parameter_server::ParameterClient& client) {
///     return [&](std::int64_t step) {
///       net->zero_grad();
///       loss(net->forward(batch(step, client.trainer(), client.trainers()))).backward();
///     };
///   });
///   if (training.is_trainer()) …
///
/// Under `lockstep run --max-restarts` processes outlive those that die: all meet again, a trainer
/// that takes a lost one's place has nothing to make up, a server takes its shard from its
/// snapshot, and synchronous servers then all go back to that update. No synchronous update is
/// lost, unless so. Elsewhere the error, which names who is gone, ends each process. Threads: the
/// training thread. Lifetime: what `make_step` captures must outlive it.
class Training {
 public:
  using Step = std::function<void(std::int64_t step)>;
  /// Makes what depends on the trainers, who may be others after each recovery.
  using MakeStep = std::function<Step(ParameterClient& client)>;
  using WhenDone = std::function<void(ParameterClient& client)>;

  /// Errors: UsageError for options or parts that cannot be, and where there is a default group.
  explicit Training(Parts parts, const TrainingOptions& options = {});
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  /// Collective, once. On trainers it makes the steps, those before a restart included: a step
  /// leaves gradients, and finds the servers' values in the parameters. When all trainers have made
  /// `steps` steps the parameters of each are the servers', and each calls `when_done`, where the
  /// tables can still be looked up. On servers it serves them until then. Errors: what steps throw;
  /// UsageError for too few ranks, and where ranks differ in parts, servers or staleness;
  /// RemoteError for what a server refuses; PeerLost, TimeoutError, CommError where no other
  /// generation follows; Error when parameters are lost.
  void run(std::int64_t steps, const MakeStep& make_step, const WhenDone& when_done = {});

  /// What this process was at last. Of run().
  bool is_trainer() const { return role_ && role_->kind == Role::Kind::kTrainer; }
  /// Among those of its kind.
  int index() const { return role_ ? role_->index : 0; }
  /// Servers: the updates of the shard. Trainers: the steps.
  std::int64_t done() const { return shard_ ? shard_->updates() : done_; }

 private:
  void live(std::int64_t steps, const MakeStep& make_step, const WhenDone& when_done);
  void take_roles();
  void recover();
  void restore(std::int64_t updates);
  void agree_on_steps();
  void open_session();
  void serve();
  void train(std::int64_t steps, const MakeStep& make_step, const WhenDone& when_done);
  void after_update();
  void save();
  void let_go();
  std::chrono::milliseconds timeout() const;

  const Parts parts_;
  const TrainingOptions options_;
  LauncherLink link_;
  ProcessGroup group_;
  bool has_run_ = false;
  std::optional<Role> role_;  ///< in this generation, or the last
  std::vector<Role> roles_;   ///< by rank
  std::optional<Shard> shard_;
  std::optional<ShardSnapshots> snapshots_;
  std::int64_t saved_ = 0;             ///< updates
  std::int64_t clock_ = 0;             ///< that the shard came with
  std::vector<std::int64_t> left_at_;  ///< a server's: the steps of each trainer before
  std::int64_t done_ = 0;              ///< steps of this trainer
  std::int64_t was_trainer_ = -1;      ///< its number, which servers know; -1: it was none
  std::vector<std::int64_t> begin_;    ///< the trainers' steps when the generation began
  std::shared_ptr<ServerDesk> desk_;
  std::optional<ServedCalls> calls_;
  std::optional<rpc::Session> session_;
  std::optional<Departures> others_;  ///< while the session lasts
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace lockstep::parameter_server
