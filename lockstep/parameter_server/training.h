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

/// Training by parameter servers: some ranks keep the parameters and update them, the others train
/// (Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014).
namespace lockstep::parameter_server {

/// An embedding of which no process but the servers holds more than the rows that it asks for.
struct Table {
  std::string name;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  /// Rows begin with normally distributed numbers of this standard deviation, which follow from
  /// `seed` alone, however many servers there are.
  double deviation = 1;
  std::uint64_t seed = 0;
};

/// What a server's rows of a table begin with; by default those of all.
at::Tensor initial_rows(const Table& table, int server = 0, int servers = 1);

/// What servers hold and update.
struct Parts {
  /// Of a model that every trainer has whole, of one dtype and on the CPU. The values that servers
  /// begin with are those of their own process: seed the generator alike.
  std::vector<at::Tensor> parameters = {};
  /// Float.
  std::vector<Table> tables = {};
  /// Makes the optimizer of a server's share of `parameters`, which is one tensor: elementwise
  /// optimizers (SGD, Adam, AdamW, RMSprop, Adagrad) then do what they do with all.
  rpc::MakeOptimizer optimizer = {};
  /// And that of its tables: one that takes sparse gradients (SGD without momentum, Adagrad).
  rpc::MakeOptimizer table_optimizer = {};
};

/// A trainer's way to the servers of its rpc session. Threads: the training thread. Lifetime: the
/// session's.
class ParameterClient {
 public:
  /// `servers`: ranks of the session, in the servers' order. `patience`: how long it waits for
  /// other trainers' steps; unset: as long as for any call. Errors: UsageError for parts that
  /// cannot be.
  ParameterClient(const Parts& parts, std::vector<int> servers, int trainer, int trainers,
                  std::optional<std::chrono::milliseconds> patience = std::nullopt);

  /// Among the trainers, from 0.
  int trainer() const { return trainer_; }
  int trainers() const { return trainers_; }

  /// The rows `ids` (Long, any shape) of a table, one for each: [ids' shape, columns]. What a
  /// backward pass gives them goes to the servers at the step's end; where gradients are off they
  /// are only read. Errors: UsageError for a table or an id that is none; as rpc::call.
  at::Tensor look_up(const std::string& table, const at::Tensor& ids);

  /// Hands in the parameters' gradients and those of rows looked up since the last time: returns
  /// when all servers have them. A parameter without a gradient counts as one of zeros.
  /// `step`: how many came before. Errors: as rpc::call.
  void push(std::int64_t step);
  /// Writes the servers' values into the parameters, once a trainer that has pushed `step` times
  /// may have them. Errors: as rpc::call.
  void pull(std::int64_t step);
  /// Returns when all trainers are here; the values do not change any more. Errors: as rpc::call;
  /// others' steps may take as long as they do, while the servers live.
  void finish();

 private:
  struct LookedUp {
    std::size_t table = 0;
    at::Tensor ids;   ///< [n], each once
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
  const std::optional<std::chrono::milliseconds> patience_;
  at::Tensor gradients_;  ///< of all parameters, end to end
  std::vector<LookedUp> looked_up_;
};

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
  std::string directory = {};
  /// Updates from one snapshot to the next.
  std::int64_t save_interval = 100;
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
  bool is_trainer() const;
  /// Among those of its kind.
  int index() const;
  /// Servers: the updates of the shard. Trainers: the steps.
  std::int64_t done() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::parameter_server
