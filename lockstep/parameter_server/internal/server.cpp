#include "lockstep/parameter_server/internal/server.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"

namespace lockstep::parameter_server::inline internal {

ParameterServer::ParameterServer(Shard& shard, UpdateRules rules, std::vector<std::int64_t> done)
    : shard_(shard),
      rules_(std::move(rules)),
      trainers_(done.size()),
      signs_(done.size()),
      all_finished_(c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get())) {
  for (std::size_t index = 0; index < done.size(); ++index) trainers_[index].done = done[index];
}

void ParameterServer::check_trainer(int trainer) const {
  if (trainer < 0 || trainer >= static_cast<int>(signs_.size()))
    throw UsageError(concat("trainer ", trainer, "; there are ", signs_.size()));
}

ParameterServer::Trainer& ParameterServer::find(int trainer) {
  check_trainer(trainer);
  return trainers_[static_cast<std::size_t>(trainer)];
}

void ParameterServer::note_sign(int trainer) {
  check_trainer(trainer);
  ++signs_[static_cast<std::size_t>(trainer)];
}

void ParameterServer::push(int trainer, std::int64_t step, Gradients gradients) {
  note_sign(trainer);
  shard_.check(gradients);  // Reads only what never changes.
  std::vector<Later> due;
  {
    const MutexLock lock(mutex_);
    if (broken_) std::rethrow_exception(broken_);
    Trainer& from = find(trainer);
    if (step != from.done || from.pushed) {
      throw UsageError(concat("unexpected gradients of step ", step, " of trainer ", trainer,
                              ", which has completed ", from.done, " steps"));
    }
    if (!rules_.staleness) {
      from.pushed = std::move(gradients);
      return;
    }
    std::vector<Gradients> one;
    one.push_back(std::move(gradients));
    ++from.done;
    update(std::move(one));
    due = broken_ ? take_waiting() : take_due();
  }
  answer(due);
}

ParameterServer::Later ParameterServer::pull(int trainer, std::int64_t step) {
  note_sign(trainer);
  const Later later = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  std::vector<Later> due;
  {
    const MutexLock lock(mutex_);
    if (broken_) std::rethrow_exception(broken_);
    Trainer& from = find(trainer);
    const std::int64_t reaches = from.done + (from.pushed ? 1 : 0);
    if (step != reaches || from.wanted) {
      throw UsageError(concat("unexpected request for values after step ", step, " by trainer ",
                              trainer, ", which has sent gradients of ", reaches, " steps"));
    }
    from.wanted = step;
    from.values = later;
    if (!rules_.staleness && all_pushed() &&
        std::ranges::all_of(trainers_, [](const Trainer& one) { return one.wanted.has_value(); })) {
      update_with_all();
    }
    due = broken_ ? take_waiting() : take_due();
  }
  answer(due);
  return later;
}

at::Tensor ParameterServer::rows(int trainer, std::size_t table, const at::Tensor& rows) {
  note_sign(trainer);
  const MutexLock lock(mutex_);
  if (broken_) std::rethrow_exception(broken_);  // Half of them may have been updated.
  return shard_.rows(table, rows);
}

ParameterServer::Later ParameterServer::finish(int trainer) {
  failpoint("training.end");
  note_sign(trainer);
  Later answer;
  {
    const MutexLock lock(mutex_);
    find(trainer).has_finished = true;
    answer = all_finished_;
    if (!std::ranges::all_of(trainers_, &Trainer::has_finished)) return answer;
  }
  if (!answer->completed()) answer->markCompleted();
  return answer;
}

bool ParameterServer::all_finished() const {
  const MutexLock lock(mutex_);
  return std::ranges::all_of(trainers_, &Trainer::has_finished);
}

std::vector<TrainerActivity> ParameterServer::activity() const {
  const MutexLock lock(mutex_);
  std::vector<TrainerActivity> all;
  for (std::size_t index = 0; index < trainers_.size(); ++index) {
    const Trainer& trainer = trainers_[index];
    all.push_back({signs_[index].load(), trainer.wanted.has_value() || trainer.has_finished});
  }
  return all;
}

void ParameterServer::forget_callers() {
  const MutexLock lock(mutex_);
  for (Trainer& trainer : trainers_) {
    trainer.wanted.reset();
    trainer.values.reset();
  }
  all_finished_.reset();
}

bool ParameterServer::has_next() const {
  const MutexLock lock(mutex_);
  return !rules_.staleness && all_pushed();
}

void ParameterServer::make_next() {
  const MutexLock lock(mutex_);
  update_with_all();
}

bool ParameterServer::all_pushed() const {
  return std::ranges::all_of(trainers_, [](const Trainer& one) { return one.pushed.has_value(); });
}

void ParameterServer::update_with_all() {
  std::vector<Gradients> gradients;
  for (Trainer& trainer : trainers_) {
    gradients.push_back(std::move(*trainer.pushed));
    trainer.pushed.reset();
    ++trainer.done;
  }
  update(std::move(gradients));
}

// Half an update cannot be taken back.
void ParameterServer::update(std::vector<Gradients> gradients) {
  try {
    shard_.update(std::move(gradients));
    rules_.after_update(clock());
  } catch (...) {
    broken_ = std::current_exception();
  }
}

std::exception_ptr ParameterServer::find_error() const {
  const MutexLock lock(mutex_);
  return broken_;
}

void ParameterServer::check() const {
  if (const std::exception_ptr error = find_error()) std::rethrow_exception(error);
}

std::vector<std::int64_t> ParameterServer::done() const {
  const MutexLock lock(mutex_);
  std::vector<std::int64_t> all;
  for (const Trainer& trainer : trainers_) all.push_back(trainer.done);
  return all;
}

std::int64_t ParameterServer::clock() const {
  return std::ranges::min(trainers_, {}, &Trainer::done).done;
}

bool ParameterServer::may_read(const Trainer& trainer) const {
  if (!trainer.wanted) return false;
  if (!rules_.staleness) return *trainer.wanted == trainer.done;
  return clock() >= trainer.done - *rules_.staleness;
}

std::vector<ParameterServer::Later> ParameterServer::take_due() {
  std::vector<Later> due;
  for (Trainer& trainer : trainers_) {
    if (!may_read(trainer)) continue;
    trainer.wanted.reset();
    ++signs_[static_cast<std::size_t>(&trainer - trainers_.data())];
    due.push_back(std::move(trainer.values));
  }
  return due;
}

std::vector<ParameterServer::Later> ParameterServer::take_waiting() {
  std::vector<Later> waiting;
  for (Trainer& trainer : trainers_) {
    if (!std::exchange(trainer.wanted, std::nullopt)) continue;
    waiting.push_back(std::move(trainer.values));
  }
  return waiting;
}

// Synchronous values change only when everyone has them; others change while they are sent.
at::Tensor ParameterServer::values_now() const {
  const at::Tensor values = shard_.values().detach();
  if (!rules_.staleness) return values;
  const MutexLock lock(mutex_);
  return values.clone();
}

void ParameterServer::answer(const std::vector<Later>& due) {
  if (due.empty()) return;
  if (const std::exception_ptr error = find_error()) {
    for (const Later& later : due) later->setError(error);
    return;
  }
  const at::Tensor values = values_now();
  for (const Later& later : due) later->markCompleted(values);
}

std::optional<int> TrainerWatch::find_silent(const std::vector<TrainerActivity>& activity,
                                             Instant now) {
  last_.resize(activity.size());
  std::optional<int> silent;
  for (std::size_t trainer = 0; trainer < activity.size(); ++trainer) {
    Last& last = last_[trainer];
    if (activity[trainer].waits || activity[trainer].signs != last.signs) {
      last = {activity[trainer].signs, now};
    } else if (!silent && now - last.instant > limit_) {
      silent = static_cast<int>(trainer);
    }
  }
  return silent;
}

}  // namespace lockstep::parameter_server::inline internal
