#include "launcher/supervise/job_agent.h"

#include <csignal>
#include <utility>

#include "diagnose/verdict/worker_text.h"
#include "launcher/rendezvous/fault_of.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/os/process/signals.h"

namespace lockstep::inline internal {
namespace {

// For the report of another machine, whose worker may have failed first.
constexpr std::chrono::milliseconds kVerdictComes{1'000};

}  // namespace

JobAgent::JobAgent(JobAgentOptions options, RendezvousNode node)
    : options_(std::move(options)),
      report_{.node = std::move(node)},
      wanted_workers_(report_.node.worker_count),
      joined_workers_(wanted_workers_) {}

bool JobAgent::take_report_change() {
  return std::exchange(has_report_changed_, false);
}

std::vector<std::string> JobAgent::take_texts() {
  return std::exchange(texts_, {});
}

void JobAgent::set_status(Status status) {
  report_.status = status;
  has_report_changed_ = true;
}

bool JobAgent::was_preempted() const {
  return report_.fault.status == kExitPreempted;
}

// Though the rendezvous may not know it yet.
bool JobAgent::has_joined(const AgentView& view) const {
  return report_.status == Status::kReady && report_.generation == view.generation;
}

// Steps.

JobAgent::Step JobAgent::next_step(const AgentView& view, bool is_reached, bool has_trouble,
                                   Time now) {
  if (phase_ == Phase::kLeaving) return Step::kEnd;
  if (awaits_verdict(view, now)) return Step::kWait;
  verdict_by_.reset();
  switch (phase_) {
    case Phase::kJudging:
      report_outcome(view, now);
      phase_ = Phase::kReported;
      return Step::kReport;
    case Phase::kReported:
      return step_reported(now);
    case Phase::kAnswering:
      if (view.phase == RendezvousState::Phase::kFailed) return end_with_job(view);
      return leave_by_signal(outcome_.stop_signal);
    case Phase::kBetween:
    case Phase::kLeaving:
      break;
  }
  return step_between(view, is_reached, has_trouble);
}

// The verdict is that the generation has ended.
bool JobAgent::awaits_verdict(const AgentView& view, Time now) const {
  return verdict_by_ && now < *verdict_by_ &&
         next_action(view, generation_, 0) == AgentAction::kWait;
}

JobAgent::Step JobAgent::step_between(const AgentView& view, bool is_reached, bool has_trouble) {
  switch (next_action(view, std::nullopt, done_)) {
    case AgentAction::kJoin:
      if (is_reached && !was_preempted() && !has_joined(view)) return Step::kJoin;
      break;
    case AgentAction::kStartWorkers:
      if (!was_preempted()) return Step::kStartWorkers;
      // The generation began before the rendezvous knew of it.
      done_ = generation_ = view.generation;
      report_failure(report_.fault, "");
      return Step::kReport;
    case AgentAction::kEnd:
      return end_with_job(view);
    case AgentAction::kWait:
    case AgentAction::kStopWorkers:  // There are none.
      break;
  }
  if (!was_preempted() || !has_trouble) return Step::kWait;
  return leave(AgentEnd::kPreempted, kExitPreempted, "left, preempted");
}

JobAgent::Step JobAgent::step_reported(Time now) {
  const WorkerExit* const cause = first_cause(outcome_);
  // Workers that cannot be killed hold devices and ports that others would need.
  if (cause != nullptr && !outcome_.stuck.empty()) {
    return leave(AgentEnd::kStuckWorkers, cause->status(), "left: its workers cannot be killed");
  }
  phase_ = outcome_.stop_signal == 0 ? Phase::kBetween : Phase::kAnswering;
  if (phase_ == Phase::kAnswering && cause != nullptr) verdict_by_ = now + kVerdictComes;
  return Step::kReport;
}

JobAgent::Step JobAgent::end_with_job(const AgentView& view) {
  const bool succeeded = view.phase == RendezvousState::Phase::kSucceeded;
  end_ = succeeded             ? AgentEnd::kSucceeded
         : is_wanted(view.end) ? AgentEnd::kStopped
                               : AgentEnd::kFailed;
  exit_code_ = succeeded ? 0 : view.status;
  return Step::kEnd;
}

JobAgent::Step JobAgent::leave(AgentEnd end, int exit_code, std::string farewell) {
  end_ = end;
  exit_code_ = exit_code;
  report_.farewell = std::move(farewell);
  set_status(Status::kLeaving);
  phase_ = Phase::kLeaving;
  return Step::kReport;
}

JobAgent::Step JobAgent::leave_by_signal(int signal) {
  outcome_.stop_signal = signal;
  return leave(AgentEnd::kSignal, is_preempted(outcome_) ? kExitPreempted : 128 + signal,
               concat("left, stopped by ", signal_name(signal)));
}

void JobAgent::stop_by_signal(int signal) {
  if (!is_preempted(outcome_)) outcome_ = {};
  leave_by_signal(signal);
}

bool JobAgent::is_cause(const AgentView& view) const {
  return first_cause(outcome_) != nullptr && done_ == view.generation && view.is_own_fault;
}

// Generations.

void JobAgent::join(const AgentView& view, const std::set<int>& kept, std::string host,
                    std::uint16_t port) {
  if (view.generation > 0 && !view.cause.empty()) explain_restart(view, kept);
  joined_workers_ = wanted_workers_;
  report_.node.worker_count = joined_workers_;
  report_.node.store_host = std::move(host);
  report_.node.store_port = port;
  report_.generation = view.generation;
  set_status(Status::kReady);
}

// With fewer workers wanted, the last of those that are kept end.
void JobAgent::explain_restart(const AgentView& view, const std::set<int>& kept) {
  const bool is_restart = view.restarts > restarts_said_;
  std::vector<int> ranks;
  for (const int local_rank : kept) {
    if (local_rank < wanted_workers_) ranks.push_back(first_rank_ + local_rank);
  }
  say(concat(view.cause,
             is_restart      ? concat("; restart ", view.restarts, " of ", options_.max_restarts)
             : ranks.empty() ? "; workers restart"
                             : "",
             ranks.empty() ? "" : concat("; ", rank_list(ranks), " kept")));
  if (!remedy_.empty() && view.is_own_fault) say(concat("  hint:   ", remedy_));
  restarts_said_ = view.restarts;
}

void JobAgent::begin_generation(const AgentView& view, Time now) {
  const NodePlacement& placement = view.placement.value();
  generation_ = view.generation;
  first_rank_ = placement.first_rank;
  began_ = now;
  if (!options_.is_on_one_machine) {
    say(concat("generation ", generation_, ": machine ", placement.node_rank, " of ",
               placement.node_count, ", ranks ", first_rank_, " to ",
               first_rank_ + joined_workers_ - 1, " of ", placement.world_size));
  }
  report_.generation = generation_;
  // Another number may have been requested since, for which this generation was not made.
  report_.node.worker_count = wanted_workers_;
  set_status(Status::kRunning);
}

// Ends.

// The cause may turn out to be another worker, but the other machines have to know at once.
void JobAgent::worker_failed(const WorkerExit& exit, Time now) {
  if (options_.is_on_one_machine || exit.told_to_stop || exit.follows_another()) return;
  report_failure(exit, now);
}

void JobAgent::generation_over(const GenerationOutcome& outcome, const AgentView& view, Time now) {
  done_ = generation_;
  if (const WorkerExit* const cause = first_cause(outcome)) {
    explain_hang(*cause, view);
    report_failure(*cause, now);
  } else if (view.generation == generation_ && !outcome.lost.empty()) {
    report_failure({.text = outcome.lost,
                    .place = outcome.step.empty() ? "" : concat("step ", outcome.step),
                    .is_hang = outcome.is_hang},
                   "");
  } else {
    set_status(Status::kIdle);
  }
}

bool JobAgent::workers_ended(GenerationOutcome outcome, const AgentView& view, Time now) {
  outcome_ = std::move(outcome);
  done_ = generation_;
  phase_ = Phase::kJudging;
  const WorkerExit* const cause = first_cause(outcome_);
  const bool is_member = view.generation == generation_ && view.placement;
  ended_well_ = cause == nullptr && outcome_.stop_signal == 0 && is_member;
  if (cause != nullptr && cause->follows_another() && view.placement &&
      view.placement->node_count > 1) {
    verdict_by_ = now + kVerdictComes;
  }
  return ended_well_;
}

void JobAgent::report_outcome(const AgentView& view, Time now) {
  if (const WorkerExit* const cause = first_cause(outcome_)) {
    explain_hang(*cause, view);
    report_failure(*cause, now);
  } else if (report_.status == Status::kRunning) {
    set_status(ended_well_ ? Status::kSucceeded : Status::kIdle);
  }
}

// Where other machines have said that a rank is late, and not which one.
void JobAgent::explain_hang(const WorkerExit& cause, const AgentView& view) {
  if (cause.late_for.empty() || view.placement) return;
  say(concat(describe_worker(cause), " ", describe_failure(cause)));
}

void JobAgent::report_failure(const WorkerExit& cause, Time now) {
  const auto after = std::chrono::duration_cast<std::chrono::seconds>(now - began_);
  report_failure(fault_of(cause, options_.where, after), describe_remedy(cause));
}

void JobAgent::report_failure(const WorkerFault& fault, std::string remedy) {
  // The first is reported already; but a preemption ends the job between generations too.
  if (report_.status != Status::kRunning && fault.status != kExitPreempted) return;
  report_.generation = generation_;
  report_.fault = fault;
  remedy_ = std::move(remedy);
  set_status(Status::kFailed);
}

// Requests.

void JobAgent::request_stop(const AgentView& view, const JobStop& wish) {
  if (!is_stop(view.end)) say(concat("stop requested by ", wish.by));
  report_.stop = wish;
  has_report_changed_ = true;
}

std::string JobAgent::scale_objection(const AgentView& view, int worker_count) const {
  if (view.ended() || report_.status == Status::kSucceeded)
    return "its workers on this machine have ended";
  if (worker_count != wanted_workers_) return "";
  return concat("it already has ", count_text(worker_count, "worker"), " on this machine");
}

void JobAgent::scale(int worker_count, const std::string& by) {
  say(concat(by, " requested ", count_text(worker_count, "worker"), " on this machine (now ",
             wanted_workers_, ")"));
  wanted_workers_ = worker_count;
  if (report_.status != Status::kRunning) return;  // The report of the next generation has it.
  report_.node.worker_count = worker_count;
  has_report_changed_ = true;
}

}  // namespace lockstep::inline internal
