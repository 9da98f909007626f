#include "lockstep/train/preemption.h"

#include <algorithm>

#include "lockstep/comm/init_process_group.h"

namespace lockstep {

Preemption::Preemption(const PreemptionOptions& options)
    : signals_(options.signals), group_(group_or_default(options.group)) {}

bool Preemption::requested() {
  const auto was_told = [](const Agreement::Numbers& rank) { return rank[0] != 0; };
  if (asked_ && std::ranges::any_of(asked_->get(), was_told)) {
    signals_.leave_ignored();  // Those that a rank will get yet that was not told before.
    return true;
  }
  if (!group_) return is_told();
  asked_ = group_.begin_agreed("preemption", Agreement::Numbers{is_told() ? 1.0 : 0.0, 0.0});
  return false;
}

void Preemption::set_group(ProcessGroup group) {
  asked_.reset();
  group_ = std::move(group);
}

bool Preemption::is_told() {
  while (signals_.next()) is_told_ = true;
  if (is_told_) signals_.leave_ignored();
  return is_told_;
}

}  // namespace lockstep
