// What simulated processes run: a loop under the Accelerator, or one of the recovery's own.
#include <algorithm>

#include "lockstep/base/internal/concat.h"
#include "lockstep/recovery/internal/simulated_process.h"

namespace lockstep::inline internal {
namespace {

using Action = RecoveryAction;
using Phase = RecoveryPhase;

}  // namespace

// The Accelerator.

SimulatedTraining::Task SimulatedTraining::Process::visit(LoaderVisit at) {
  was_moved = false;
  const int batches = job.options_.batches;
  if (state.phase == Phase::kEnded) co_return true;
  if (state.phase == Phase::kInactive) {
    if (at != LoaderVisit::kLoopBegins) co_return true;
    co_await attempt("training id", {});
    boundary_cursor = loader;
    job.lines_.clear();  // It begins anew.
    job.check_furthest(*this);
    if (state.keeps_shards) co_await begin_shards();
    co_await carry_out(called::Activate{});
  } else {
    if (batches_of_step != 0 && state.phase == Phase::kTraining) {
      is_extended = true;
      co_return true;
    }
    if (!state.is_discarding()) boundary_cursor = loader;
    const bool was_finishing = state.phase == Phase::kFinishing;
    co_await carry_out(called::Boundary{
        .kind = at == LoaderVisit::kLoopEnds ? BoundaryKind::kEpochEnd : BoundaryKind::kStep,
        .steps = model.steps});
    if (state.phase == Phase::kFinishing) {
      loader = {.epoch = was_finishing ? loader.epoch : std::max(loader.epoch - 1, 0),
                .batch = batches};
      was_moved = true;
      co_return true;
    }
  }
  if (loader.batch < batches) state.progress = StepProgress::kOpen;
  co_return true;
}

// In new memory.
SimulatedTraining::Task SimulatedTraining::Process::begin_shards() {
  model.version = remembered.version = 0;
  bool is_lost = false;
  try {
    co_await call(all, "begin shards");
    if (rank == 0) job.kept_shards_ = {};
    co_await call(all, "new shards");
    co_await keep_shards();
  } catch (const GroupIsLost&) {
    is_lost = true;
  }
  if (is_lost) throw ProgramError{.text = "begin shards", .is_expected = true};
  co_return true;
}

// False: this rank's own values, or those of a part of the ranks.
SimulatedTraining::Task SimulatedTraining::Process::attempt(const char* kind, Row row) {
  if (!used) {
    state.note_collective();
    co_return false;
  }
  bool is_lost = false;
  try {
    const Group::Call* const done = co_await call(used, kind, row);
    job.check_same(*this, kind, row, done->rows);
  } catch (const GroupIsLost&) {
    is_lost = true;
  }
  if (!is_lost) {
    state.note_collective();
    co_return used->members.size() == all->members.size();
  }
  if (co_await carry_out(called::CollectiveFailed{}) == Action::kDecline) {
    throw ProgramError{.text = concat("the program's own: ", kind),
                       .is_expected = state.phase == Phase::kInactive};
  }
  co_return false;
}

// The section ends with the error, or it has a result of a part of the ranks.
SimulatedTraining::Task SimulatedTraining::Process::call_in_section(const char* kind, Row row) {
  bool is_lost = false;
  try {
    const Group::Call* const done = co_await call(used, kind, row);
    job.check_same(*this, kind, row, done->rows);
  } catch (const GroupIsLost&) {
    is_lost = true;
  }
  if (!is_lost) co_return true;
  const bool is_in_step = state.progress == StepProgress::kOpen;
  if (!is_in_step && co_await carry_out(called::CollectiveFailed{}) != Action::kDecline)
    job.fail(concat("process ", id, ": a section has a part of its results"));
  throw GroupIsLost();
}

SimulatedTraining::Task SimulatedTraining::Process::run_on_survivors(const Section& section) {
  const Action action = co_await carry_out(called::RunOnSurvivors{}, &section);
  if (action == Action::kDecline) co_return false;
  if (action == Action::kReturn) co_return true;
  bool is_lost = false;
  try {
    co_await section();
  } catch (const GroupIsLost&) {
    is_lost = true;
  }
  if (!is_lost) co_return true;
  if (action == Action::kRunAlone ||
      co_await carry_out(called::CollectiveFailed{}) == Action::kDecline)
    throw ProgramError{.text = "a section failed"};
  co_return false;
}

SimulatedTraining::Task SimulatedTraining::Process::end_training() {
  if (!state.is_active()) co_return true;
  if (!state.is_discarding()) boundary_cursor = loader;
  co_await carry_out(called::Boundary{.kind = BoundaryKind::kTrainingEnd, .steps = model.steps});
  co_return state.phase == Phase::kEnded;
}

SimulatedTraining::Task SimulatedTraining::Process::update(int optimizer) {
  if (state.phase == Phase::kGroupLost || state.phase == Phase::kSurvivors)
    co_await carry_out(called::MoreUpdates{});
  if (state.has_lost_group()) co_return true;
  co_await yield();
  if (!(++updates >= expected_updates() && !is_extended)) {
    ++undone_updates;
    if (!undo) undo = model;
  }
  // Without a copy of the end, ranks start from the beginning if one fails after others have ended.
  if (job.is_trained_ && !state.keeps_shards)
    job.fail(concat("process ", id, " makes a step after the training's end"));
  const int first = loader.epoch * job.options_.batches + loader.batch - batches_of_step;
  if (optimizer == 0 && model.trained != first && !state.is_discarding()) {
    job.fail(concat("process ", id, ": batch ", first, " after ", model.trained, " batches"));
  }
  model.hash = mix(model.hash,
                   mix(static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(optimizer)));
  if (optimizer == 0) ++model.steps;
  co_await yield();
  if (optimizer + 1 == job.options_.optimizers) model.trained += batches_of_step;
  if (state.progress != StepProgress::kNone) {
    state.progress = updates >= expected_updates() ? StepProgress::kComplete : StepProgress::kOpen;
  }
  co_return true;
}

// The recovery's own loop, which repeats a step that throws.

SimulatedTraining::Task SimulatedTraining::Process::own_loop() {
  co_await carry_out(called::Join{.generation = generation,
                                  .rank = rank,
                                  .can_recover = true,
                                  .is_standby = is_standby,
                                  .owns_loop = true});
  while (state.phase != Phase::kEnded) {
    if (state.phase != Phase::kTraining) job.fail(concat("a loop in ", name_of(state.phase)));
    const bool is_end = model.steps >= job.options_.epochs * job.options_.batches;
    bool is_lost = false;
    try {
      if (!is_end) co_await make_own_step();
    } catch (const GroupIsLost&) {
      is_lost = true;
    }
    if (!is_lost) {
      co_await carry_out(called::Boundary{
          .kind = is_end ? BoundaryKind::kTrainingEnd : BoundaryKind::kStep, .steps = model.steps});
      job.most_steps_ = std::max(job.most_steps_, model.steps);
    } else if (co_await carry_out(called::StepFailed{}) == Action::kDecline) {
      job.fail(concat("process ", id, " does not recover from a step that failed"));
    }
  }
  co_return true;
}

SimulatedTraining::Task SimulatedTraining::Process::make_own_step() {
  co_await call_in_step("ask");  // Whether a rank is preempted: outside of the step.
  state.progress = StepProgress::kOpen;
  co_await yield();
  if (std::exchange(throws_soon, false))
    throw ProgramError{.text = "the program throws", .is_expected = true};
  if (job.options_.exchanges_buffers) co_await call_in_step("buffers");
  co_await call_in_step("exchange");
  co_await yield();
  ++updates;
  if (job.is_trained_) job.fail(concat("process ", id, " makes a step after the training's end"));
  if (model.trained != model.steps)
    job.fail(concat("process ", id, ": step ", model.steps, " after ", model.trained, " steps"));
  model.hash = mix(model.hash, static_cast<std::uint64_t>(model.steps));
  co_await yield();
  ++model.trained;
  if (job.options_.gathers_in_tail) {
    co_await call_in_step("gather");
    model.tail = mix(model.tail, 0);
  }
  ++model.steps;
  co_return true;
}

SimulatedTraining::Task SimulatedTraining::Process::call_in_step(const char* kind) {
  const Row own = model.row();
  const Group::Call* const done = co_await call(used, kind, own);
  job.check_same(*this, kind, own, done->rows);
  co_return true;
}

// The program.

SimulatedTraining::Task SimulatedTraining::Process::program() {
  co_await carry_out(called::Join{
      .generation = generation, .rank = rank, .can_recover = true, .is_standby = is_standby});
  co_await prepare();
  co_await carry_out(called::Arrive{});
  const int epochs = job.options_.epochs;
  int epoch = loader.epoch;
  std::int64_t recoveries = state.recoveries;
  for (;;) {
    if (epoch >= epochs) {
      if (co_await end_training()) co_return true;
      epoch = loader.epoch;
    }
    co_await loop();
    if (job.options_.evaluates_epochs && co_await evaluate()) {
      ++model.evaluations;
      print(concat("epoch ", loader.epoch));
    }
    const bool was_disturbed = std::exchange(recoveries, state.recoveries) != state.recoveries;
    if (loader.epoch == epoch && !was_disturbed)
      throw ProgramError{.text = "an epoch without a loop"};
    epoch = loader.epoch;
  }
}

SimulatedTraining::Task SimulatedTraining::Process::prepare() {
  if (!state.is_discarding()) co_await attempt("prepare", {});
  if (job.options_.save_every == 0) co_return true;
  if (state.is_discarding()) {
    loads_snapshot = true;
    co_await carry_out(called::Arrive{});
    loads_snapshot = false;
    if (state.is_discarding()) co_return true;
  }
  bool is_lost = false;
  try {
    const Group::Call* const loaded = co_await call(all, "load", {}, 0, job.disk_);
    if (loaded->sent) {
      model = loaded->sent->model;
      loader = loaded->sent->cursor;
    }
  } catch (const GroupIsLost&) {
    is_lost = true;
  }
  if (is_lost) throw ProgramError{.text = "load", .is_expected = true};
  co_return true;
}

SimulatedTraining::Task SimulatedTraining::Process::loop() {
  co_await visit(LoaderVisit::kLoopBegins);
  for (;;) {
    if (loader.batch >= job.options_.batches) {
      loader = {.epoch = loader.epoch + 1, .batch = 0};
      co_return true;
    }
    ++loader.batch;
    co_await make_step();
    const bool is_all = model.trained == job.options_.epochs * job.options_.batches;
    if (job.options_.ends_in_loop && is_all && !state.is_discarding()) {
      loader = {.epoch = loader.epoch + 1, .batch = 0};
      co_return true;
    }
    const bool is_last = loader.batch == job.options_.batches;
    co_await visit(is_last ? LoaderVisit::kLoopEnds : LoaderVisit::kNextBatch);
  }
}

SimulatedTraining::Task SimulatedTraining::Process::make_step() {
  const SimulatedTrainingOptions& options = job.options_;
  ++batches_of_step;
  const bool is_sync = batches_of_step >= options.accumulation || loader.batch == options.batches;
  const int steps_before = model.steps;
  co_await yield();
  if (std::exchange(throws_soon, false))
    throw ProgramError{.text = "the program throws", .is_expected = true};
  if (options.exchanges_buffers) co_await attempt("buffers", model.row());
  if (options.evaluates_in_step && batches_of_step == 1 && co_await evaluate()) ++model.evaluations;
  for (int optimizer = 0; optimizer < options.optimizers && is_sync; ++optimizer) {
    if (!state.has_lost_group()) co_await attempt("exchange", model.row());
    co_await update(optimizer);
  }
  if (is_sync) {
    if (co_await does_step_count()) co_await tail(steps_before);
    batches_of_step = 0;
  }
  co_return true;
}

SimulatedTraining::Task SimulatedTraining::Process::does_step_count() {
  if (!job.options_.completes_steps) co_return true;
  const bool counts = co_await carry_out(called::CompleteStep{}) == Action::kReturn;
  // An update or a gather behind it may fail.
  const bool is_final = job.options_.extra_update_every == 0 && !job.options_.gathers_in_tail;
  if (counts && is_final) counted_steps = model.steps;
  co_return counts;
}

SimulatedTraining::Task SimulatedTraining::Process::tail(int steps_before) {
  const SimulatedTrainingOptions& options = job.options_;
  const bool has_extra = is_due(steps_before, options.extra_update_every);
  if (options.gathers_in_tail) {
    const bool is_of_all = co_await attempt("gather", model.row_of_step());
    model.tail = mix(model.tail, is_of_all ? 0 : 100 + static_cast<std::uint64_t>(id));
  }
  if (is_due(steps_before, options.evaluate_every) && co_await evaluate()) ++model.evaluations;
  if (options.gathers_in_tail) {
    const bool is_of_all = co_await attempt("gather", model.row_of_step());
    model.tail = mix(model.tail, is_of_all ? 1 : 100 + static_cast<std::uint64_t>(id));
  }
  if (has_extra) {
    if (!state.has_lost_group()) co_await attempt("exchange", model.row_of_step());
    co_await update(options.optimizers);
  }
  if (is_due(steps_before, options.save_every)) co_await save();
  co_return true;
}

SimulatedTraining::Task SimulatedTraining::Process::evaluate() {
  const Section section = [this]() -> Task {
    for (int part = 0; part < 2; ++part) {
      Row own = model.row_of_step();
      own.push_back(part);
      co_await call_in_section("evaluate", own);
    }
    co_return true;
  };
  co_return co_await run_on_survivors(section);
}

SimulatedTraining::Task SimulatedTraining::Process::save() {
  const Section section = [this]() -> Task {
    const Row own = model.row_of_step();
    co_await call_in_section("save", own);
    if (used->rank_of(this) == 0) {
      co_await yield();
      Snapshot saved = snapshot();
      saved.cursor = loader;
      if (saved.is_uncertain) job.took_uncertain_ = true;
      job.write_to_disk(saved);
    }
    co_await call(used, "saved");
    co_return true;
  };
  const bool is_saved = co_await run_on_survivors(section);
  if (is_saved && job.steps_on_disk_ < model.steps)
    job.fail(concat("process ", id, ": there is no snapshot of step ", model.steps));
  co_return true;
}

void SimulatedTraining::Process::print(const std::string& line) {
  // A step, or an uncertain state, may be given up when its lines are printed.
  const bool is_certain = state.held == HeldState::kWhole && state.progress == StepProgress::kNone;
  if (!is_certain) job.may_lack_lines_ = true;
  if (state.is_discarding() || !state.is_main || !is_certain) return;
  if (!job.lines_.insert(line).second) job.fail(concat("printed twice: ", line));
  if (state.phase == Phase::kSurvivors) lines_of_survivor.push_back(line);
}

}  // namespace lockstep::inline internal
