#include "lockstep/comm/backends/shm/engine.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "lockstep/base/internal/concat.h"

namespace lockstep::shm {
namespace {

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool is_from_any(const Task& task) {
  return !task.operation && task.message.peer == Message::kAnyPeer;
}

}  // namespace

Engine::Engine(std::shared_ptr<Segment> segment, int rank, std::string group_name,
               const Options& options)
    : team_(std::move(segment), rank, std::move(group_name), options.numbers), messages_(team_) {
  team_.set_processors(own_processors(options.local_ranks));
  Drivers<Engine>::instance().add(this);
}

Engine::~Engine() {
  Drivers<Engine>::instance().remove(this);
}

void Engine::start(std::shared_ptr<Task> task) {
  const MutexLock lock(mutex_);
  task->number = task->operation ? collectives_started_++ : messages_started_++;
  if (!failure_.reason.empty()) {
    const std::string reason = concat("the group ended before with: ", failure_.reason);
    if (failure_.is_peer_lost) throw PeerLost(fields_of(*task, failure_.ranks), reason);
    throw CommError(fields_of(*task, failure_.ranks), reason);
  }
  if (task->operation) {
    collectives_.push_back(std::move(task));
  } else {
    exchanges_.push_back(task);
    end_all_if_it_throws(false, [&]() LOCKSTEP_REQUIRES(mutex_) { start_message(*task); });
  }
  advance();
}

void Engine::start_message(Task& task) {
  const bool is_send = task.message.direction == Message::Direction::kSend;
  is_send ? messages_.start_send(task.message) : messages_.start_receive(task.message);
}

bool Engine::poll(const Task& task) {
  const MutexLock lock(mutex_);
  if (!task.ended) advance();
  if (task.ended) return true;
  if (!looks_.allows(Deadline::Clock::now())) return false;
  if (!end_if_hopeless(task)) Drivers<Engine>::instance().advance_all_but(this);
  return task.ended;
}

bool Engine::wait(Task& task, Deadline until) {
  const MutexLock lock(mutex_);
  if (task.deadline_from_wait) {
    task.deadline = Deadline::after(task.timeout);
    task.deadline_from_wait = false;
  }
  advance();
  const auto look_often = [&]() LOCKSTEP_REQUIRES(mutex_) {
    constexpr int kLooksPerClock = 32;  // the clock costs as much as a look
    for (int look = 0; look < kLooksPerClock && !task.ended; ++look) {
      pause_briefly();
      advance();
    }
  };
  look_often();  // Mostly enough: the clock is not read.
  if (!task.ended) {
    const auto spin_end = Deadline::Clock::now() + spin_;
    while (!task.ended && Deadline::Clock::now() < spin_end) look_often();
  }
  while (!task.ended) {
    sleep(task, until);
    if (!task.ended && until.passed()) return false;
  }
  if (task.error) std::rethrow_exception(task.error);
  return true;
}

void Engine::abort() {
  team_.abort();
}

bool Engine::advance_all() {
  return Drivers<Engine>::instance().advance_all_but(nullptr);
}

Engine::Failure Engine::failure() {
  const MutexLock lock(mutex_);
  return failure_;
}

Engine::Failure Engine::find_failure() {
  const MutexLock lock(mutex_);
  if (failure_.reason.empty()) {
    // A rank that has left has done its part of what it left; who waits for more of it finds out.
    constexpr int kNobody = -1;
    const Verdict verdict = team_.check_peers(kNobody);
    if (verdict.reason != Reason::kNone) end_by(verdict, nullptr);
  }
  return failure_;
}

// Moves everything on; an error ends the group.
bool Engine::advance() {
  const bool messages_advanced = advance_messages();
  bool advanced = false;
  end_all_if_it_throws(true, [&]() LOCKSTEP_REQUIRES(mutex_) {
    // Last, so that what it is blocked on is what a wait for a collective sleeps on.
    while (advance_stages()) advanced = true;
  });
  return advanced || messages_advanced;
}

bool Engine::advance_if_free() {
  if (!mutex_.try_lock()) return false;
  const MutexLock lock(mutex_, std::adopt_lock);
  advance();
  return !collectives_.empty() || !exchanges_.empty();
}

bool Engine::advance_messages() {
  if (exchanges_.empty()) return false;
  bool advanced = false;
  end_all_if_it_throws(false, [&]() LOCKSTEP_REQUIRES(mutex_) { advanced = messages_.advance(); });
  std::erase_if(exchanges_, [](const std::shared_ptr<Task>& task) {
    if (task->message.complete) task->ended = true;
    return task->ended;
  });
  return advanced;
}

bool Engine::advance_stages() {
  bool advanced = false;
  for (; posted_ < collectives_.size(); ++posted_) {
    Task& task = *collectives_[posted_];
    Progress progress;
    while ((progress = task.operation->post(team_)) == Progress::kSome) {
      task.begun = true;
      advanced = true;
    }
    if (progress == Progress::kNone) break;
    task.begun = true;
    advanced = true;
  }
  // A stage may begin where the stage before it has begun.
  for (; reduced_ < posted_ || (reduced_ < collectives_.size() && collectives_[reduced_]->begun);
       ++reduced_) {
    Progress progress;
    while ((progress = collectives_[reduced_]->operation->reduce(team_)) == Progress::kSome) {
      advanced = true;
    }
    if (progress == Progress::kNone) break;
    advanced = true;
  }
  while (!collectives_.empty() && collectives_.front()->begun) {
    const Progress progress = collectives_.front()->operation->finish(team_);
    if (progress == Progress::kNone) break;
    advanced = true;
    if (progress == Progress::kSome) continue;
    collectives_.front()->ended = true;
    collectives_.pop_front();
    // A stage learns that it is through when it is called again, which may be now or never.
    if (posted_ > 0) --posted_;
    if (reduced_ > 0) --reduced_;
  }
  return advanced;
}

// A message waits for its peer; a collective for whoever it found missing last.
int Engine::awaited_by(const Task& task) const {
  if (task.operation) return team_.blocked_on();
  if (task.message.peer != Message::kAnyPeer) return task.message.peer;
  return team_.rank() == 0 ? 1 : 0;  // It sleeps a short slice whoever it sleeps on.
}

// Who waits for any peer goes on as long as one is there.
Verdict Engine::check_peers_for(const Task& task) {
  if (!is_from_any(task)) return team_.check_peers(awaited_by(task));
  Verdict verdict;
  for (int peer = 0; peer < team_.ranks(); ++peer) {
    if (peer == team_.rank()) continue;
    verdict = team_.check_peers(peer);
    if (verdict.reason != Reason::kLeft) break;
  }
  return verdict;
}

// One short sleep, in which other threads may use the group, and all that has to be looked at from
// time to time.
void Engine::sleep(const Task& task, Deadline until) {
  {
    const int peer = awaited_by(task);
    const Team::Sleep sleep(team_, peer);
    if (!advance() && !task.ended && awaited_by(task) == peer) {
      mutex_.unlock();
      sleep.until_woken();
      mutex_.lock();
    }
  }
  advance();
  if (task.ended || end_if_hopeless(task) || until.passed()) return;
  Drivers<Engine>::instance().advance_all_but(this);
}

// Ends everything where a peer that is needed is gone, or the task is late. Returns whether it has.
bool Engine::end_if_hopeless(const Task& task) {
  const Verdict verdict = check_peers_for(task);
  if (verdict.reason != Reason::kNone) {
    advance();  // What the peer had done before it ended may be enough.
    if (!task.ended) end_by(verdict, &task);
    return true;
  }
  if (task.deadline_from_wait || !task.deadline.passed()) return false;
  if (is_from_any(task)) {  // No rank is late: the peers learn that this one gave up.
    end_all<TimeoutError>(concat("not complete within ", task.timeout.count(),
                                 " ms, waiting for a message from any rank; send one"));
    team_.abort();
    return true;
  }
  const Verdict late{.reason = Reason::kLate, .rank = awaited_by(task)};
  team_.publish_failure(late);
  end_by(late, &task);
  return true;
}

void Engine::end_by(Verdict verdict, const Task* awaited) {
  if (verdict.reason == Reason::kNone) return;
  const std::vector<int> ranks = {team_.number_of(verdict.rank)};
  const std::string who = team_.describe_rank(verdict.rank);
  switch (verdict.reason) {
    case Reason::kNone:
      break;
    case Reason::kDied:
      return end_all<PeerLost>(
          concat("a peer is gone: ", who, " ended; see its output for the reason"), ranks);
    case Reason::kLeft:
      return end_all<PeerLost>(
          concat("a peer is gone: ", who, " left the group; call the same on every rank"), ranks);
    case Reason::kAborted:
      failure_.by_abort = failure_.reason.empty();
      return end_all<PeerLost>(concat(who, " aborted the group; look at its error"), ranks);
    case Reason::kLate:
      break;
  }
  if (verdict.rank == team_.rank()) {
    return end_all<TimeoutError>("this rank was late: the timeout of its peers expired", ranks);
  }
  if (awaited == nullptr || awaited->deadline_from_wait || !awaited->deadline.passed()) {
    return end_all<TimeoutError>(concat("the timeout of a peer that waits for ", who,
                                        " expired; check the log of that rank"),
                                 ranks);
  }
  end_all<TimeoutError>(
      concat("not complete within ", awaited->timeout.count(), " ms, waiting for ", who,
             ", which is stuck, stopped or did not make this call"),
      ranks);
}

// What is wrong with a collective call every rank finds by itself; anything else the peers are
// told.
template <class Body>
void Engine::end_all_if_it_throws(bool all_ranks_see_wrong_calls, Body&& body) {
  try {
    body();
    return;
  } catch (const UsageError& error) {
    end_all<UsageError>(error.what());
    if (all_ranks_see_wrong_calls) return;
  } catch (const std::exception& error) {
    end_all<CommError>(error.what());
  }
  team_.abort();
}

template <class ErrorType>
void Engine::end_all(const std::string& reason, const std::vector<int>& ranks) {
  if (failure_.reason.empty()) {
    failure_.reason = reason;
    failure_.ranks = ranks;
    failure_.is_peer_lost = std::is_same_v<ErrorType, PeerLost>;
  }
  for (auto* const tasks : {&collectives_, &exchanges_}) {
    for (const std::shared_ptr<Task>& task : *tasks) {
      if (!task->operation) messages_.forget(task->message);
      task->ended = true;
      if constexpr (std::is_base_of_v<OperationError, ErrorType>) {
        task->error = std::make_exception_ptr(ErrorType(fields_of(*task, ranks), reason));
      } else {
        task->error =
            std::make_exception_ptr(ErrorType(concat(describe(fields_of(*task)), ": ", reason)));
      }
    }
    tasks->clear();
  }
  posted_ = 0;
  reduced_ = 0;
}

void Engine::throw_incomplete(const Task& task, std::chrono::milliseconds waited) const {
  throw TimeoutError(fields_of(task), concat("not complete after ", waited.count(), " ms"));
}

ErrorFields Engine::fields_of(const Task& task, std::vector<int> ranks) const {
  return {.operation = task.name,
          .group = team_.group_name(),
          .own_rank = team_.number_of(team_.rank()),
          .sequence = task.number,
          .timeout = task.timeout,
          .ranks = std::move(ranks)};
}

}  // namespace lockstep::shm
