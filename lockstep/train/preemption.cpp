#include "lockstep/train/preemption.h"

#include <algorithm>
#include <optional>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/internal/agreement.h"
#include "lockstep/os/process/caught_signals.h"

namespace lockstep {

struct Preemption::State {
  explicit State(const PreemptionOptions& options)
      : signals(options.signals), group(group_or_default(options.process_group)) {}

  CaughtSignals signals;
  ProcessGroup group;
  bool has_notice = false;
  /// Of the last call: which ranks have received a notice.
  std::optional<Agreement> asked;
};

Preemption::Preemption(const PreemptionOptions& options)
    : state_(std::make_unique<State>(options)) {}

Preemption::~Preemption() = default;

bool Preemption::requested() {
  const auto was_told = [](const Agreement::Numbers& rank) { return rank[0] != 0; };
  if (state_->asked && std::ranges::any_of(state_->asked->get(), was_told)) {
    // Notices that ranks without one have yet to receive.
    state_->signals.leave_ignored();
    return true;
  }
  if (!state_->group) return has_notice();
  state_->asked =
      begin_agreed(state_->group, "preemption", Agreement::Numbers{has_notice() ? 1.0 : 0.0, 0.0});
  return false;
}

void Preemption::set_process_group(ProcessGroup group) {
  state_->asked.reset();
  state_->group = std::move(group);
}

bool Preemption::has_notice() {
  while (state_->signals.next()) state_->has_notice = true;
  if (state_->has_notice) state_->signals.leave_ignored();
  return state_->has_notice;
}

}  // namespace lockstep
