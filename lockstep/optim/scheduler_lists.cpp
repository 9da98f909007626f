#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/optim/internal/scheduler_state.h"
#include "lockstep/optim/schedulers.h"
#include "lockstep/snapshot/save.h"

namespace lockstep {
namespace {

using torch::optim::Optimizer;

}  // namespace

SchedulerList::SchedulerList(const char* name, Optimizer& optimizer,
                             std::vector<std::shared_ptr<LRScheduler>> schedulers)
    : LRScheduler(optimizer), name_(name), schedulers_(std::move(schedulers)) {
  require_option(!schedulers_.empty(), name_, "no scheduler given; give at least one");
  for (std::size_t i = 0; i < schedulers_.size(); ++i) {
    require_option(schedulers_[i] != nullptr, name_, concat("scheduler ", i, " is null"));
    require_option(schedulers_[i]->optimizer_ == &optimizer, name_,
                   concat("scheduler ", i, " belongs to another optimizer"));
    require_option(schedulers_[i]->step_count_ == 0, name_,
                   concat("scheduler ", i, " has already stepped; create a new one"));
  }
}
// The schedulers do it.
double SchedulerList::first_lr(std::size_t, double lr) {
  return lr;
}
double SchedulerList::next_lr(std::size_t, std::int64_t, double lr) {
  return lr;
}
double SchedulerList::restart_lr(std::size_t group) {
  return base_lr(group);
}
void SchedulerList::begin_one(std::size_t i) {
  schedulers_[i]->begin();
}
void SchedulerList::restart_one(std::size_t i) {
  LRScheduler& scheduler = *schedulers_[i];
  scheduler.step_count_ = 0;
  std::vector<double> lrs = lrs_of(optimizer());
  for (std::size_t group = 0; group < lrs.size(); ++group) lrs[group] = scheduler.restart_lr(group);
  scheduler.set_lrs(std::move(lrs));
}
void SchedulerList::step_one(std::size_t i, std::int64_t epoch) {
  schedulers_[i]->step_count_ = static_cast<unsigned>(epoch - 1);
  schedulers_[i]->step();
}
std::vector<double> SchedulerList::finish_step() {
  last_lrs_ = lrs_of(optimizer());
  return last_lrs_;
}
c10::IValue SchedulerList::state_dict() const {
  c10::impl::GenericList all = make_list();
  for (std::size_t i = 0; i < schedulers_.size(); ++i) {
    const std::int64_t epoch = epoch_of(i, last_epoch());
    // Accelerator and Trainer take this one's steps back, not theirs.
    schedulers_[i]->step_count_ = static_cast<unsigned>(std::max<std::int64_t>(epoch, 0));
    c10::impl::GenericDict one = schedulers_[i]->state_dict().toGenericDict();
    if (one.contains("last_epoch")) one.insert_or_assign("last_epoch", epoch);
    if (one.contains("_step_count") && one.at("_step_count").toInt() != 0) {
      one.insert_or_assign("_step_count", std::max<std::int64_t>(epoch, 0) + 1);
    }
    all.push_back(one);
  }
  c10::impl::GenericDict dict = make_dict();
  dict.insert_or_assign("_last_lr", list_of(last_lrs_));
  dict.insert_or_assign("_schedulers", all);
  return dict;
}
void SchedulerList::load_state_dict(const c10::IValue& values) {
  const c10::IValue all = entry(values, "_schedulers", kLoadScheduler);
  if (!all.isList() || all.toListRef().size() != schedulers_.size()) {
    throw UsageError(concat(kLoadScheduler, ": it is not of a ", name_, " of ", schedulers_.size(),
                            " schedulers"));
  }
  refuse_another_scheduler(values);
  std::vector<double> last_lrs = numbers_of(values, "_last_lr");
  std::vector<c10::IValue> before;
  for (const auto& scheduler : schedulers_) before.push_back(scheduler->state_dict());
  try {
    for (std::size_t i = 0; i < schedulers_.size(); ++i) {
      schedulers_[i]->load_state_dict(all.toListRef()[i]);
    }
  } catch (...) {
    for (std::size_t i = 0; i < schedulers_.size(); ++i) schedulers_[i]->load_state_dict(before[i]);
    throw;
  }
  last_lrs_ = std::move(last_lrs);
  step_count_ = schedulers_[0]->step_count_;
}

SequentialLR::SequentialLR(Optimizer& optimizer,
                           std::vector<std::shared_ptr<LRScheduler>> schedulers,
                           std::vector<std::int64_t> milestones)
    : SchedulerList("SequentialLR", optimizer, schedulers), milestones_(std::move(milestones)) {
  require_option(milestones_.size() + 1 == schedulers.size(), "SequentialLR",
                 concat("there are ", schedulers.size(), " schedulers and ", milestones_.size(),
                        " milestones; give one milestone fewer than schedulers"));
  require_option(std::ranges::is_sorted(milestones_), "SequentialLR", "milestones do not ascend");
  for (const auto& scheduler : schedulers) {
    require_option(dynamic_cast<const SchedulerList*>(scheduler.get()) == nullptr, "SequentialLR",
                   "it takes no SequentialLR or ChainedScheduler; give their schedulers");
  }
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    optimizer.param_groups()[group].options().set_lr(group_value(group, "initial_lr"));
  }
  begin_one(active_at(0));
  finish_step();
}
std::size_t SequentialLR::active_at(std::int64_t epoch) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(milestones_, epoch) -
                                  milestones_.begin());
}
std::vector<double> SequentialLR::get_lrs() {
  const std::int64_t epoch = last_epoch() + 1;
  const std::size_t active = active_at(epoch);
  if (active > 0 && start_of(active) == epoch) {
    restart_one(active);
  } else {
    step_one(active, epoch - start_of(active));
  }
  return finish_step();
}
std::int64_t SequentialLR::epoch_of(std::size_t i, std::int64_t epoch) const {
  const std::size_t active = active_at(epoch);
  if (i > active) return -1;
  // One that is over, or that another has replaced before it began.
  if (i < active) return std::max<std::int64_t>(start_of(i + 1) - start_of(i), 0) - 1;
  return epoch - start_of(i);
}
c10::IValue SequentialLR::state_dict() const {
  c10::impl::GenericDict dict = SchedulerList::state_dict().toGenericDict();
  dict.insert_or_assign("_milestones", list_of(milestones_));
  dict.insert_or_assign("last_epoch", last_epoch());
  return dict;
}
void SequentialLR::load_state_dict(const c10::IValue& values) {
  std::vector<std::int64_t> milestones;
  for (const double milestone : numbers_of(values, "_milestones")) {
    milestones.push_back(to_integer(milestone, "_milestones"));
  }
  require_option(std::ranges::is_sorted(milestones), "SequentialLR",
                 "the milestones of the state that is loaded do not ascend");
  require_option(milestones.size() == milestones_.size(), "SequentialLR",
                 "the state that is loaded has another number of milestones");
  const std::int64_t epoch = epoch_in(values);
  SchedulerList::load_state_dict(values);
  milestones_ = std::move(milestones);
  step_count_ = static_cast<unsigned>(epoch);
}

ChainedScheduler::ChainedScheduler(Optimizer& optimizer,
                                   std::vector<std::shared_ptr<LRScheduler>> schedulers)
    : SchedulerList("ChainedScheduler", optimizer, std::move(schedulers)) {
  finish_step();
}
std::vector<double> ChainedScheduler::get_lrs() {
  const std::int64_t epoch = last_epoch() + 1;
  for (std::size_t i = 0; i < size(); ++i) step_one(i, epoch);
  return finish_step();
}
std::int64_t ChainedScheduler::epoch_of(std::size_t, std::int64_t epoch) const {
  return epoch;
}

}  // namespace lockstep
