#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/rpc/distributed_optimizer.h"

/// Training with parameter servers: some ranks hold and update the parameters, the other ranks
/// train.
/// Source: Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.
namespace lockstep::parameter_server {

/// An embedding whose rows are on the servers; a trainer holds only the rows that it looks up.
struct Table {
  std::string name;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  /// Standard deviation of the rows' normally distributed initial values, which depend on
  /// `seed` alone, for any number of servers.
  double standard_deviation = 1;
  std::uint64_t seed = 0;
};

/// Initial values of a server's rows of a table; by default of all rows.
at::Tensor initial_rows(const Table& table, int server = 0, int servers = 1);

/// What servers hold and update.
struct Parts {
  /// Parameters of a model that every trainer holds completely; one dtype, on the CPU. A server
  /// starts with the values in its own process: seed the generator equally.
  std::vector<at::Tensor> parameters = {};
  /// Embeddings, float32.
  std::vector<Table> tables = {};
  /// Creates the optimizer of a server's shard of `parameters`, which is one tensor. Elementwise
  /// optimizers (SGD, Adam, AdamW, RMSprop, Adagrad) then give the unsharded result.
  rpc::MakeOptimizer optimizer = {};
  /// Creates the optimizer of a server's tables, which must accept sparse gradients (SGD without
  /// momentum, Adagrad).
  rpc::MakeOptimizer table_optimizer = {};
};

/// A trainer's connection to the servers of its rpc session.
/// Threads: call from the training thread.
/// Lifetime: that of the session.
class ParameterClient {
 public:
  /// `servers`: ranks in the session, in the servers' order.
  /// `trainer`, `trainers`: index of this trainer, and their number.
  /// `timeout`: timeout of waits for other trainers' steps; unset: that of any call.
  /// Errors: UsageError for invalid parts.
  ParameterClient(const Parts& parts, std::vector<int> servers, int trainer, int trainers,
                  std::optional<std::chrono::milliseconds> timeout = std::nullopt);

  /// Index of this trainer, from 0.
  int trainer() const { return trainer_; }
  /// The number of trainers.
  int trainers() const { return trainers_; }

  /// Returns rows of a table: [shape of ids, columns], float32. The next push() sends the gradients
  /// of a backward pass to the servers; with gradients disabled the rows are only read.
  /// `ids`: int64, any shape.
  /// Errors: UsageError for an unknown table or id, and another dtype; as rpc::call.
  at::Tensor look_up(const std::string& table, const at::Tensor& ids);

  /// Sends the gradients of the parameters, and of rows looked up since the last push; returns when
  /// all servers have them. A parameter without a gradient counts as zeros.
  /// `step`: number of earlier pushes.
  /// Errors: as rpc::call.
  void push(std::int64_t step);
  /// Copies the servers' values to the parameters, once the staleness allows it for a trainer that
  /// has pushed `step` times.
  /// Errors: as rpc::call.
  void pull(std::int64_t step);
  /// Waits until all trainers have called it; the values do not change any more. A timeout does not
  /// end it while the servers live, since other trainers may still train.
  /// Errors: as rpc::call.
  void finish();

 private:
  struct LookedUp {
    std::size_t table = 0;
    at::Tensor ids;   ///< [n], unique
    at::Tensor rows;  ///< [n, columns], a leaf
  };
  std::size_t find(const std::string& table) const;
  at::Tensor fetch(std::size_t table, const at::Tensor& ids) const;
  void gather_gradients();

  const std::vector<at::Tensor> parameters_;
  const std::vector<Table> tables_;
  const std::vector<int> servers_;
  const int trainer_;
  const int trainers_;
  const std::optional<std::chrono::milliseconds> timeout_;
  at::Tensor gradients_;  ///< of all parameters, concatenated
  std::vector<LookedUp> looked_up_;
};

/// Options of Training.
struct TrainingOptions {
  /// Number of servers, at first the lowest ranks; the other ranks are trainers.
  int servers = 1;
  /// Unset: synchronous. Each step is one update with the mean of all trainers' gradients, with the
  /// same bits in every run.
  /// Set: asynchronous. Each trainer's gradients are an update, and no trainer is more than this
  /// number of steps ahead of the slowest. If a process fails during a step, some servers may make
  /// its update twice.
  std::optional<std::int64_t> staleness = std::nullopt;
  /// Options of init_process_group(). Its timeout is also that of calls and steps: a trainer that
  /// does not call a server for so long is treated as hung.
  InitOptions init = {};
  /// Directory of the servers' snapshots of their shards, from which a restarted job and replaced
  /// servers resume. Empty: no snapshots.
  std::string directory = {};
  /// Updates between snapshots.
  std::int64_t save_interval = 100;
};

/// Trains with parameter servers; run the same program on all ranks:
///
/// ```cpp
/// parameter_server::Training training({.parameters = net->parameters(), .optimizer = …},
///                                     {.servers = 2});
/// training.run(steps, [&](parameter_server::ParameterClient& client) {
///   return [&](std::int64_t step) {
///     net->zero_grad();
///     loss(net->forward(batch(step, client.trainer(), client.trainers()))).backward();
///   };
/// });
/// if (training.is_trainer()) …
/// ```
///
/// Under `lockstep run --max-restarts` the survivors of a failed process keep their processes. A
/// replaced trainer pulls the parameters. A replaced server loads its shard from its snapshot, and
/// synchronous servers all roll back to that update. Apart from such a rollback, no synchronous
/// update is lost. Under other launchers an error that names the lost rank ends each process.
///
/// Threads: call from the training thread.
/// Lifetime: what `make_step` captures must outlive it.
class Training {
 public:
  /// Computes gradients of one step; `step` counts from 0.
  using Step = std::function<void(std::int64_t step)>;
  /// Creates the step function; called again when a recovery has changed the trainers.
  using MakeStep = std::function<Step(ParameterClient& client)>;
  /// Runs on each trainer after the last step, while the tables can still be looked up.
  using WhenDone = std::function<void(ParameterClient& client)>;

  /// Errors: UsageError for invalid options or parts, and if a default group exists.
  explicit Training(Parts parts, const TrainingOptions& options = {});
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  /// Runs the training. Collective; call it once. A trainer makes `steps` steps, those before a
  /// restart included: before each step the parameters get the servers' values, and after it the
  /// gradients are sent. After the last step of all trainers their parameters equal the servers',
  /// and each trainer calls `when_done`; then the servers return.
  /// Errors: what steps throw. UsageError for too few ranks, and if parts, servers or staleness
  /// differ between ranks. RemoteError for what a server refuses. PeerLost, TimeoutError and
  /// CommError if no other generation follows. Error if parameters are lost.
  void run(std::int64_t steps, const MakeStep& make_step, const WhenDone& when_done = {});

  /// Whether this process is a trainer, in the newest generation of run().
  bool is_trainer() const;
  /// Its index among the trainers or among the servers.
  int index() const;
  /// On a server, the updates of its shard; on a trainer, its steps.
  std::int64_t done() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::parameter_server
