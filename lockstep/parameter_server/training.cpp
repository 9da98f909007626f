#include "lockstep/parameter_server/training.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/comm/internal/init_plan.h"
#include "lockstep/parameter_server/internal/calls.h"
#include "lockstep/parameter_server/internal/recovery_plan.h"
#include "lockstep/parameter_server/internal/server.h"
#include "lockstep/parameter_server/internal/shard.h"
#include "lockstep/parameter_server/internal/shard_plan.h"
#include "lockstep/parameter_server/internal/shard_snapshots.h"
#include "lockstep/parameter_server/internal/trainer_watch.h"
#include "lockstep/recovery/internal/generations.h"
#include "lockstep/recovery/internal/launcher_link.h"
#include "lockstep/rpc/rpc.h"

namespace lockstep::parameter_server {
namespace {

// What ranks must have alike.
std::string text_of(const Parts& parts, const TrainingOptions& options) {
  std::string text = concat(
      "servers=", options.servers,
      " staleness=", options.staleness ? std::to_string(*options.staleness) : "synchronous",
      " parameters=", parts.parameters.size(), " elements=", count_elements(parts.parameters));
  for (const Table& table : parts.tables)
    text += concat(" ", table.name, "=", table.rows, "x", table.columns, ",seed:", table.seed,
                   ",standard_deviation:", table.standard_deviation);
  return text;
}

std::string name_of(const Role& role) {
  return concat(role.kind == Role::Kind::kServer ? "server" : "trainer", role.index);
}

std::vector<int> ranks_of(const std::vector<Role>& roles, Role::Kind kind) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < roles.size(); ++rank) {
    if (roles[rank].kind == kind) ranks.push_back(static_cast<int>(rank));
  }
  std::ranges::sort(ranks, {},
                    [&](int rank) { return roles[static_cast<std::size_t>(rank)].index; });
  return ranks;
}

// Snapshots that a standing can name: as many as a server keeps, and one it is about to delete.
constexpr std::size_t kMostSnapshots = 3;

std::vector<std::int64_t> to_numbers(const ServerStanding& standing) {
  std::vector<std::int64_t> numbers{standing.updates.value_or(-1), standing.has_next ? 1 : 0};
  for (std::size_t index = 0; index < kMostSnapshots; ++index) {
    numbers.push_back(index < standing.snapshots.size() ? standing.snapshots[index] : -1);
  }
  return numbers;
}

ServerStanding from_numbers(const std::vector<std::int64_t>& numbers) {
  ServerStanding standing{.has_next = numbers[1] != 0};
  if (numbers[0] >= 0) standing.updates = numbers[0];
  for (std::size_t index = 2; index < numbers.size(); ++index) {
    if (numbers[index] >= 0) standing.snapshots.push_back(numbers[index]);
  }
  return standing;
}

}  // namespace

class Training::Impl {
 public:
  Impl(Parts parts, const TrainingOptions& options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void run(std::int64_t steps, const MakeStep& make_step, const WhenDone& when_done);
  bool is_trainer() const { return role_ && role_->kind == Role::Kind::kTrainer; }
  int index() const { return role_ ? role_->index : 0; }
  std::int64_t done() const { return shard_ ? shard_->updates() : done_; }

 private:
  bool live_in_generation(std::int64_t steps, const MakeStep& make_step, const WhenDone& when_done);
  void live(std::int64_t steps, const MakeStep& make_step, const WhenDone& when_done);
  void take_roles();
  void recover();
  void restore(std::int64_t updates);
  void agree_on_steps();
  void open_session();
  void serve();
  void train(std::int64_t steps, const MakeStep& make_step, const WhenDone& when_done);
  void after_update(std::int64_t clock);
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
  std::shared_ptr<ParameterServer> server_;
  std::optional<ServedCalls> calls_;
  std::optional<rpc::Session> session_;
  std::optional<ProcessExits> others_;  ///< while the session lasts
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

Training::Training(Parts parts, const TrainingOptions& options)
    : impl_(std::make_unique<Impl>(std::move(parts), options)) {}

Training::~Training() = default;

void Training::run(std::int64_t steps, const MakeStep& make_step, const WhenDone& when_done) {
  impl_->run(steps, make_step, when_done);
}

bool Training::is_trainer() const {
  return impl_->is_trainer();
}

int Training::index() const {
  return impl_->index();
}

std::int64_t Training::done() const {
  return impl_->done();
}

Training::Impl::Impl(Parts parts, const TrainingOptions& options)
    : parts_(std::move(parts)), options_(options) {
  check_parts(parts_);
  if (is_initialized()) {
    throw UsageError(
        "parameter servers: a default group already exists and would outlive failed ranks; let "
        "run() call init_process_group()");
  }
  if (options_.servers < 1)
    throw UsageError(concat("parameter servers: ", options_.servers, " servers; at least 1"));
  if (options_.staleness.value_or(0) < 0)
    throw UsageError(concat("parameter servers: staleness ", *options_.staleness, "; at least 0"));
  if (options_.save_interval < 1) {
    throw UsageError(
        concat("parameter servers: save_interval ", options_.save_interval, "; at least 1"));
  }
}

Training::Impl::~Impl() {
  let_go();
}

std::chrono::milliseconds Training::Impl::timeout() const {
  return collective_timeout(options_.init);
}

void Training::Impl::run(std::int64_t steps, const MakeStep& make_step, const WhenDone& when_done) {
  if (std::exchange(has_run_, true))
    throw UsageError("parameter servers: run() was already called; run all steps in one call");
  link_.say_keeps_state(timeout());
  if (link_.is_standby()) link_.take_rank([] {});
  while (!live_in_generation(steps, make_step, when_done)) {
    link_.take_rank([] {});
    failpoint("recover.placed");
  }
  link_.say_done();
  let_go();
}

// False: a rank is lost, and this one has left.
bool Training::Impl::live_in_generation(std::int64_t steps, const MakeStep& make_step,
                                        const WhenDone& when_done) {
  try {
    live(steps, make_step, when_done);
    return true;
  } catch (const Error& error) {
    if (!link_.connected() || !ends_generation(error)) throw;
    leave_generation(link_, error, [&] {
      let_go();
      abandon_default_group(group_);
      return done();
    });
    return false;
  }
}

void Training::Impl::live(std::int64_t steps, const MakeStep& make_step,
                          const WhenDone& when_done) {
  InitOptions init = options_.init;
  // Copies of the group may outlive this object.
  init.while_waiting = [this, alive = std::weak_ptr<const bool>(alive_)] {
    if (!alive.expired()) check_if_over(link_);
  };
  group_ = init_process_group(init);
  check_same_text(group_, "parameter servers", text_of(parts_, options_));
  take_roles();
  recover();
  agree_on_steps();
  open_session();
  if (is_trainer()) {
    train(steps, make_step, when_done);
  } else {
    serve();
    save();
  }
  failpoint("training.done");
  calls_->leave();
  // What others still do, as a last snapshot, may take longer than a collective waits.
  if (!others_) others_.emplace();
  std::vector<int> all(roles_.size());
  std::iota(all.begin(), all.end(), 0);
  others_->wait_for(all, timeout(), [this] { check_if_over(link_); });
  others_.reset();
  rpc::shutdown(timeout());
}

void Training::Impl::take_roles() {
  const int before = !role_ ? kIsNew : is_trainer() ? kWasTrainer : role_->index;
  std::vector<int> all;
  for (const auto& row : gather_rows(group_, {before})) all.push_back(static_cast<int>(row[0]));
  roles_ = assign_roles(all, options_.servers);
  role_ = roles_[static_cast<std::size_t>(group_.rank())];
  if (is_trainer() || shard_) return;
  if (!options_.directory.empty())
    snapshots_.emplace(options_.directory, role_->index, options_.servers);
}

void Training::Impl::recover() {
  ServerStanding own;
  if (!is_trainer()) {
    if (shard_) own.updates = shard_->updates();
    own.has_next = server_ && server_->has_next();
    if (snapshots_) own.snapshots = snapshots_->whole();
  }
  const auto rows = gather_rows(group_, to_numbers(own));
  std::vector<ServerStanding> standings;
  for (const int rank : ranks_of(roles_, Role::Kind::kServer))
    standings.push_back(from_numbers(rows[static_cast<std::size_t>(rank)]));
  const auto plans = plan_recovery(standings, !options_.staleness);
  const auto lost = std::ranges::find(plans, Recovery::Kind::kLost, &Recovery::kind);
  if (lost != plans.end()) {
    // Synchronous servers are all lost when one is.
    const auto gone = std::ranges::find_if(
        standings, [](const ServerStanding& standing) { return !standing.updates; });
    const auto server = options_.staleness        ? lost - plans.begin()
                        : gone != standings.end() ? gone - standings.begin()
                                                  : 0;
    throw Error(concat(
        "parameter servers: the state of server ", server,
        " is lost, and there is no complete snapshot of it",
        options_.staleness ? "" : " at an update that all servers have",
        options_.directory.empty() ? "; set `directory` in the options to save snapshots" : ""));
  }
  run_on_all(group_, "restore a parameter server's shard", [&] {
    if (is_trainer()) return;
    const Recovery& plan = plans[static_cast<std::size_t>(role_->index)];
    if (!shard_) shard_.emplace(parts_, role_->index, options_.servers);
    if (plan.kind == Recovery::Kind::kSnapshot) restore(plan.updates);
    if (plan.kind == Recovery::Kind::kKeep && shard_->updates() < plan.updates)
      server_->make_next();
    if (server_) server_->check();  // Half an update is no state to go on from.
    if (server_) left_at_ = server_->done();
    server_.reset();
  });
}

void Training::Impl::restore(std::int64_t updates) {
  if (shard_->updates() > updates) {
    log(LogLevel::kWarning, concat("parameter server ", role_->index, " rolls back from update ",
                                   shard_->updates(), " to ", updates, ", like all servers"));
  }
  clock_ = snapshots_->load(*shard_, updates);
  saved_ = updates;
}

void Training::Impl::agree_on_steps() {
  if (shard_ && !options_.staleness) clock_ = shard_->updates();
  // Of a trainer its number before and its steps, of a server its clock and each trainer's steps.
  std::vector<std::int64_t> own;
  if (is_trainer()) {
    own = {was_trainer_, done_};
  } else {
    own = {clock_};
    own.insert(own.end(), left_at_.begin(), left_at_.end());
  }
  own.resize(1 + roles_.size(), -1);
  const auto rows = gather_rows(group_, own);
  std::vector<ServerClock> servers;
  for (const int rank : ranks_of(roles_, Role::Kind::kServer)) {
    const auto& row = rows[static_cast<std::size_t>(rank)];
    servers.push_back({.slowest = row[0]});
    std::ranges::copy_if(row.begin() + 1, row.end(), std::back_inserter(servers.back().trainers),
                         [](std::int64_t steps) { return steps >= 0; });
  }
  std::vector<std::optional<TrainerStanding>> trainers;
  for (const int rank : ranks_of(roles_, Role::Kind::kTrainer)) {
    const auto& row = rows[static_cast<std::size_t>(rank)];
    trainers.emplace_back();
    if (row[0] >= 0) trainers.back() = {.index = static_cast<int>(row[0]), .steps = row[1]};
  }
  begin_ = plan_steps(trainers, servers, !options_.staleness);
  if (!is_trainer()) {
    left_at_ = begin_;
    return;
  }
  was_trainer_ = role_->index;
  done_ = begin_[static_cast<std::size_t>(role_->index)];
}

void Training::Impl::open_session() {
  if (!is_trainer()) {
    server_ = std::make_shared<ParameterServer>(
        *shard_,
        UpdateRules{.staleness = options_.staleness,
                    .after_update = [this](std::int64_t clock) { after_update(clock); }},
        begin_);
  }
  calls_.emplace(server_);
  session_.emplace(rpc::init(name_of(*role_), group_, {.timeout = timeout()}));
}

// Returns when the trainers have left. Who dies is known at once: its call ends.
void Training::Impl::serve() {
  const auto trainers = ranks_of(roles_, Role::Kind::kTrainer);
  const auto look = [&] {
    server_->check();  // First: trainers that were told of it die of it.
    check_if_over(link_);
  };
  others_.emplace();
  TrainerWatch watch(timeout());
  while (!server_->all_finished()) {
    look();
    others_->check();
    if (const auto silent =
            watch.find_silent(server_->activity(), std::chrono::steady_clock::now())) {
      const int rank = trainers[static_cast<std::size_t>(*silent)];
      throw TimeoutError(
          {.operation = concat("parameter server ", role_->index),
           .timeout = timeout(),
           .ranks = {rank}},
          concat("no message from trainer", *silent, " (rank ", rank, ") for ", timeout().count(),
                 " ms; it is stuck or stopped, or its steps take longer than the timeout of "
                 "`init`"));
    }
    others_->wait_for_news();
  }
  others_->wait_for(trainers, timeout(), look);
}

void Training::Impl::train(std::int64_t steps, const MakeStep& make_step,
                           const WhenDone& when_done) {
  // Servers notice trainers that are stuck; who waits for these waits for the servers to say so.
  ParameterClient client(parts_, ranks_of(roles_, Role::Kind::kServer), role_->index,
                         static_cast<int>(begin_.size()), 2 * timeout());
  client.pull(done_);
  const Step step = make_step(client);
  while (done_ < steps) {
    failpoint("step.begin");
    step(done_);
    failpoint("step.made");
    client.push(done_);
    client.pull(++done_);
  }
  client.finish();
  client.pull(done_);
  if (when_done) when_done(client);
}

void Training::Impl::after_update(std::int64_t clock) {
  failpoint("step.counted");
  clock_ = clock;
  if (snapshots_ && shard_->updates() % options_.save_interval == 0) save();
}

void Training::Impl::save() {
  if (!snapshots_ || shard_->updates() == saved_) return;
  try {
    snapshots_->save(*shard_, clock_);
    saved_ = shard_->updates();
  } catch (const SystemError& error) {
    log(LogLevel::kWarning, concat("saving server ", role_->index, " after ", shard_->updates(),
                                   " updates failed: ", error.what()));
  }
}

// Keeps the desk: it may have the gradients of the next update. Its answers would keep the group.
void Training::Impl::let_go() {
  others_.reset();
  session_.reset();
  calls_.reset();
  if (server_) server_->forget_callers();
}

}  // namespace lockstep::parameter_server
