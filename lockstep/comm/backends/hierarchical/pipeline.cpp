#include "lockstep/comm/backends/hierarchical/pipeline.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/error_text.h"

namespace lockstep::hierarchical {
namespace {

using std::chrono::milliseconds;

// How long a sleep may last while something else than what is waited for may want to move on.
constexpr milliseconds kSleepSlice{1};
// After the deadline, for those who know more of who is late to say so first.
constexpr milliseconds kGraceAfterDeadline{200};

// What ends a group.
class Failed : public UnnamedCommError {
 public:
  Failed(UnnamedCommError error, bool saw_it_itself)
      : UnnamedCommError(std::move(error)), saw_it_itself_(saw_it_itself) {}
  bool saw_it_itself() const { return saw_it_itself_; }

 private:
  bool saw_it_itself_;
};

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& other) {
    return error_text(other);
  }
}

// An error of Gloo, which says first where in its sources it is.
UnnamedCommError gloo_error(const std::string& what, const std::string& text) {
  const auto place_end = text.starts_with('[') ? text.find("] ") : std::string::npos;
  const std::string reason = place_end == std::string::npos ? text : text.substr(place_end + 2);
  switch (failure_of(text)) {
    case CommFailure::kTimeout:
      return {CommFailure::kTimeout,
              concat("a rank is stuck, stopped or did not make this call: ", what, ": ", reason)};
    case CommFailure::kPeerLost:
      return {CommFailure::kPeerLost, concat("a peer is gone: ", what, ": ", reason)};
    case CommFailure::kOther:
      break;
  }
  return {CommFailure::kOther, concat(what, ": ", reason)};
}

}  // namespace

Pipeline::Pipeline(Connections connections) : connections_(std::move(connections)) {
  Drivers<Pipeline>::instance().add(this);
}

Pipeline::~Pipeline() {
  Drivers<Pipeline>::instance().remove(this);
}

std::shared_ptr<Collective> Pipeline::start(const char* name,
                                            std::vector<std::unique_ptr<PieceSteps>> pieces,
                                            std::vector<at::Tensor> tensors, milliseconds timeout) {
  const MutexLock lock(mutex_);
  if (failure_) {
    throw UnnamedCommError(CommFailure::kOther,
                           concat("the group ended before with: ", failure_->what()),
                           failure_->ranks());
  }
  auto task = std::make_shared<Collective>(name, std::move(tensors), timeout);
  task->pieces_left = pieces.size();
  for (auto& steps : pieces) {
    pieces_.push_back({.task = task, .steps = std::move(steps), .number = pieces_started_++});
  }
  advance();
  return task;
}

bool Pipeline::poll(const Collective& task) {
  {
    const MutexLock lock(mutex_);
    if (!task.ended) advance();
    if (task.ended) return true;
    if (!looks_.allows(Deadline::Clock::now())) return false;
  }
  shm::Engine::advance_all();
  Drivers<Pipeline>::instance().advance_all_but(this);
  return false;
}

bool Pipeline::wait(const Collective& task, Deadline until) {
  if (!run_until([&] { return task.ended; }, until)) return false;
  if (task.error) std::rethrow_exception(task.error);
  return true;
}

void Pipeline::throw_incomplete(const Collective&, milliseconds waited) {
  throw UnnamedCommError(CommFailure::kTimeout,
                         concat("not complete after ", waited.count(), " ms"));
}

bool Pipeline::idle() {
  const MutexLock lock(mutex_);
  return pieces_.empty();
}

bool Pipeline::drive_until(const std::function<bool()>& done, Deadline until) {
  run_until([&]() LOCKSTEP_REQUIRES(mutex_) { return pieces_.empty() || done(); }, until);
  while (!done()) {
    const bool engines_busy = shm::Engine::advance_all();
    const bool pipelines_busy = Drivers<Pipeline>::instance().advance_all_but(nullptr);
    if (until.passed() || (!engines_busy && !pipelines_busy)) return done();
    connections_.signal->wait_past(connections_.signal->count(), kSleepSlice);
  }
  return true;
}

bool Pipeline::run_until(const std::function<bool()>& done, Deadline until) {
  for (;;) {
    Blocker blocker;
    const std::uint64_t seen = connections_.signal->count();
    {
      const MutexLock lock(mutex_);
      advance();
      if (done()) return true;
      blocker = find_blocker();
    }
    if (until.passed()) return false;
    sleep(blocker, seen);
  }
}

// Moves everything on; an error ends the group.
void Pipeline::advance() {
  if (pieces_.empty()) return;
  try {
    advance_pieces();
    if (pieces_.empty()) return;
    const Collective& oldest = *pieces_.front().task;
    if (Deadline(oldest.deadline.instant() + kGraceAfterDeadline).passed()) {
      throw Failed({CommFailure::kTimeout,
                    concat("not complete within ", oldest.timeout.count(),
                           " ms; a rank is stuck, stopped or did not make this call")},
                   false);
    }
    const auto now = Deadline::Clock::now();
    if (machine_looks_.allows(now)) look_at_machine();
    if (connection_looks_.allows(now)) look_at_connections();
  } catch (const Failed& error) {
    fail(error, error.saw_it_itself());
  } catch (const UsageError& error) {
    fail({CommFailure::kOther, error.what()}, true, std::current_exception());
  } catch (...) {
    fail(gloo_error("the exchange between machines", text_of(std::current_exception())), false);
  }
}

bool Pipeline::advance_if_free() {
  if (!mutex_.try_lock()) return false;
  const MutexLock lock(mutex_, std::adopt_lock);
  advance();
  return !pieces_.empty();
}

void Pipeline::advance_pieces() {
  // No piece overtakes the one before it.
  Stage limit = Stage::kComplete;
  const std::size_t window = std::min(pieces_.size(), kWindow);
  for (std::size_t i = 0; i < window; ++i) {
    Piece& piece = pieces_[i];
    while (piece.stage < limit && stage_ended(piece)) begin_next_stage(piece);
    limit = piece.stage;
  }
  while (!pieces_.empty() && pieces_.front().stage == Stage::kComplete) {
    Collective& task = *pieces_.front().task;
    if (--task.pieces_left == 0) task.ended = true;
    pieces_.pop_front();
  }
}

bool Pipeline::stage_ended(Piece& piece) {
  switch (piece.stage) {
    case Stage::kBefore:
      return has_ended(connections_.reduce, piece);
    case Stage::kAfter:
      return has_ended(connections_.gather, piece);
    case Stage::kExchanging:
    case Stage::kSpreading:
      if (!piece.exchange) return true;
      try {
        return piece.exchange->ended();
      } catch (...) {
        throw Failed(gloo_error(connections_.exchange->name(), text_of(std::current_exception())),
                     false);
      }
    case Stage::kWaiting:
    case Stage::kComplete:
      break;
  }
  return true;
}

bool Pipeline::has_ended(shm::Engine& engine, const Piece& piece) {
  if (!piece.local) return true;
  if (!engine.poll(*piece.local)) return false;
  if (!piece.local->error) return true;
  const shm::Engine::Failure failure = engine.failure();
  try {
    std::rethrow_exception(piece.local->error);
  } catch (const TimeoutError&) {
    throw Failed({CommFailure::kTimeout, failure.reason, failure.ranks}, false);
  } catch (const PeerLost&) {
    throw Failed({CommFailure::kPeerLost, failure.reason, failure.ranks}, !failure.by_abort);
  } catch (const CommError&) {
    throw Failed({CommFailure::kOther, failure.reason, failure.ranks}, true);
  }
}

// While it waits for another machine. A peer that is gone harms nobody who has nothing left to do
// with it; one that waits for this rank hears that this one waits too.
void Pipeline::look_at_machine() {
  const bool needs_peers = std::ranges::any_of(pieces_, [](const Piece& piece) {
    return piece.stage == Stage::kWaiting ||
           (piece.stage < Stage::kAfter && piece.steps->ends_on_machine());
  });
  for (shm::Engine* const engine : {&connections_.reduce, &connections_.gather}) {
    const shm::Engine::Failure failure = engine->find_failure();
    if (failure.is_peer_lost && needs_peers) {
      throw Failed({CommFailure::kPeerLost, failure.reason, failure.ranks}, !failure.by_abort);
    }
    if (!failure.is_peer_lost && !failure.ranks.empty()) {
      throw Failed({CommFailure::kTimeout, failure.reason, failure.ranks}, false);
    }
  }
}

// Gloo leaves calls incomplete that a lost connection interrupts.
void Pipeline::look_at_connections() {
  const bool exchanges =
      std::ranges::any_of(pieces_, [](const Piece& piece) { return piece.exchange != nullptr; });
  if (!exchanges) return;
  const Collective& oldest = *pieces_.front().task;
  if (!connections_.exchange->is_cut_off(oldest.deadline.instant() - oldest.timeout)) return;
  throw Failed({CommFailure::kPeerLost,
                concat("a peer is gone: ", connections_.exchange->name(), ": connection closed")},
               false);
}

void Pipeline::begin_next_stage(Piece& piece) {
  piece.exchange.reset();
  const at::Tensor& staging = staging_for(piece);
  const Deadline deadline = piece.task->deadline;
  switch (piece.stage) {
    case Stage::kWaiting:
      piece.stage = Stage::kBefore;
      return start_local(connections_.reduce, piece, piece.steps->before(staging));
    case Stage::kBefore:
      piece.stage = Stage::kExchanging;
      piece.exchange = piece.steps->exchange(staging, deadline);
      return;
    case Stage::kExchanging:
      piece.stage = Stage::kSpreading;
      piece.exchange = piece.steps->spread(staging, deadline);
      return;
    case Stage::kSpreading:
      piece.stage = Stage::kAfter;
      return start_local(connections_.gather, piece, piece.steps->after(staging));
    case Stage::kAfter:
      piece.stage = Stage::kComplete;
      return;
    case Stage::kComplete:
      return;
  }
}

void Pipeline::start_local(shm::Engine& engine, Piece& piece,
                           std::unique_ptr<shm::Operation> operation) {
  piece.local.reset();
  if (!operation) return;
  piece.local = std::make_shared<shm::Task>(piece.task->name, piece.task->timeout);
  piece.local->deadline = piece.task->deadline;
  piece.local->operation = std::move(operation);
  engine.start(piece.local);
}

const at::Tensor& Pipeline::staging_for(const Piece& piece) {
  // Of the pieces in the window no two have the same.
  at::Tensor& staging = staging_[piece.number % kWindow];
  const std::int64_t bytes = piece.steps->staging_bytes();
  if (!staging.defined() || staging.numel() < bytes) staging = at::empty({bytes}, at::kByte);
  return staging;
}

// Whom to wait for. What is reduced within the machine comes first: Gloo then has something to
// carry meanwhile.
Pipeline::Blocker Pipeline::find_blocker() {
  const std::size_t window = std::min(pieces_.size(), kWindow);
  for (std::size_t i = 0; i < window; ++i) {
    if (pieces_[i].stage == Stage::kBefore && pieces_[i].local) {
      return {&connections_.reduce, pieces_[i].local};
    }
  }
  if (!pieces_.empty() && pieces_.front().stage == Stage::kAfter && pieces_.front().local) {
    return {&connections_.gather, pieces_.front().local};
  }
  return {};
}

void Pipeline::sleep(const Blocker& blocker, std::uint64_t seen) {
  if (blocker.engine != nullptr) {
    try {
      blocker.engine->wait(*blocker.task, Deadline::after(kSleepSlice));
    } catch (...) {
      // The next advance() finds the task's error.
    }
  } else {
    connections_.signal->wait_past(seen, kSleepSlice);
    shm::Engine::advance_all();
  }
  Drivers<Pipeline>::instance().advance_all_but(this);
}

void Pipeline::fail(const UnnamedCommError& error, bool saw_it_itself,
                    const std::exception_ptr& own_error) {
  failure_ = connections_.note.agree(error, saw_it_itself).value_or(error);
  for (Piece& piece : pieces_) {
    piece.task->ended = true;
    piece.task->error = own_error ? own_error : std::make_exception_ptr(*failure_);
    abandoned_.push_back(std::move(piece));
  }
  pieces_.clear();
  connections_.abort();
  // Their tasks end at once: nothing is copied from or to tensors whose collectives have ended.
  for (shm::Engine* const engine : {&connections_.reduce, &connections_.gather}) {
    engine->find_failure();
  }
}

void Pipeline::give_up(const std::exception_ptr& error) {
  const MutexLock lock(mutex_);
  if (!failure_) {
    const shm::Engine::Failure local = connections_.reduce.find_failure();
    if (!local.reason.empty() && !local.by_abort) {
      fail({CommFailure::kPeerLost, local.reason, local.ranks}, true);
    } else {
      fail(gloo_error("a connection of the group", text_of(error)), false);
    }
  }
  throw UnnamedCommError(*failure_);
}

}  // namespace lockstep::hierarchical
