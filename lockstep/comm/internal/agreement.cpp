#include "lockstep/comm/internal/agreement.h"

#include <ATen/ops/empty.h>

#include "lockstep/comm/internal/collective_call.h"
#include "lockstep/comm/internal/process_group_state.h"

namespace lockstep::inline internal {

struct Agreement::State {
  std::string what;    // what errors call it
  StartedCheck check;  // where calls are compared by an exchange of ours
  at::Tensor all;      // where numbers alone are gathered
  Work gathered;
  bool is_complete = false;
  std::vector<Numbers> numbers;
};

const std::vector<Agreement::Numbers>& Agreement::get() const {
  static const std::vector<Numbers> nothing;
  if (!state_) return nothing;
  if (state_->is_complete) return state_->numbers;
  if (state_->check.all.defined()) {
    for (const CheckMessage& message : finish_check(state_->check)) {
      state_->numbers.push_back(message.numbers);
    }
  } else {
    state_->gathered.wait();
    const at::Tensor all = state_->all.cpu();
    const auto* const number = all.const_data_ptr<double>();
    for (std::int64_t i = 0; i < all.numel(); i += 2) {
      state_->numbers.push_back({number[i], number[i + 1]});
    }
  }
  state_->is_complete = true;
  return state_->numbers;
}

Agreement begin_agreed(const ProcessGroup& process_group, const std::string& what,
                       const std::optional<Agreement::Numbers>& numbers) {
  const ProcessGroup::State& group = ProcessGroupAccess::state(process_group, "begin_agreed");
  if (group.call_check != CallCheck::kExchange && !numbers) return {};
  auto agreement = std::make_shared<Agreement::State>();
  agreement->what = what;
  if (group.world_size == 1) {
    agreement->is_complete = true;
    if (numbers) agreement->numbers.push_back(*numbers);
  } else if (group.call_check == CallCheck::kExchange) {
    agreement->check = start_check({agreement->what.c_str(), group},
                                   {.call = CallSignature(agreement->what.c_str()),
                                    .numbers = numbers.value_or(Agreement::Numbers{})});
  } else {
    at::Tensor own = at::empty({2}, at::kDouble);
    own.mutable_data_ptr<double>()[0] = (*numbers)[0];
    own.mutable_data_ptr<double>()[1] = (*numbers)[1];
    own = own.to(group.device);
    agreement->all = at::empty({2 * group.world_size}, own.options());
    agreement->gathered = process_group.all_gather_into_tensor(
        agreement->all, own,
        {.async_op = true, .name = what.substr(0, CallSignature::kMostNameLetters)});
  }
  return Agreement(std::move(agreement));
}

std::uint64_t count_replica(const ProcessGroup& group) {
  return ProcessGroupAccess::state(group, "count_replica").replicas++;
}

}  // namespace lockstep::inline internal
