#include "lockstep/train/preemption.h"

#include <algorithm>

#include "lockstep/comm/init_process_group.h"

namespace lockstep {

Preemption::Preemption(const PreemptionOptions& options)
    : signals_(options.signals), group_(group_or_default(options.group)) {}

bool Preemption::requested() {
  const auto is_told = [](const Agreement::Numbers& rank) { return rank[0] != 0; };
  if (asked_ && std::ranges::any_of(asked_->get(), is_told)) return true;
  while (signals_.next()) is_told_ = true;
  if (!group_) return is_told_;
  asked_ = group_.begin_agreed("preemption", Agreement::Numbers{is_told_ ? 1.0 : 0.0, 0.0});
  return false;
}

}  // namespace lockstep
