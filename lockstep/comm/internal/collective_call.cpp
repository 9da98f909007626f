#include "lockstep/comm/internal/collective_call.h"

#include <cstring>

#include <ATen/ops/empty.h>

#include "diagnose/capture/recent_calls.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/comm/internal/process_group_state.h"
#include "lockstep/comm/internal/work_state.h"

namespace lockstep::inline internal {
namespace {

std::chrono::milliseconds checked_timeout(const CallSite& call, const CollectiveOptions& options) {
  const auto timeout = options.timeout.value_or(call.group.timeout);
  check_timeout(call, timeout);
  return timeout;
}

void check_name(const CallSite& call, const std::string& name) {
  if (name.size() <= CallSignature::kMostNameLetters) return;
  refuse(call, "the name '", name, "' has ", name.size(), " letters; at most ",
         CallSignature::kMostNameLetters, " are compared");
}

// What the way to the backend may take without counting, so that the backend's own error says the
// timeout that the caller set and not "9998 ms".
constexpr std::chrono::milliseconds kTimeToBegin{50};

[[noreturn]] void refuse(const CollectiveName& name, const std::string& difference) {
  throw UsageError(concat(describe(name), ": ", difference,
                          "; all ranks must make the same calls in the same order"));
}

template <class Value>
std::vector<Value> gathered(const StartedCheck& gather) {
  const at::Tensor all = gather.all.cpu();
  std::vector<Value> values(all.nbytes() / sizeof(Value));
  std::memcpy(values.data(), all.const_data_ptr(), values.size() * sizeof(Value));
  return values;
}

// A call that has its number and its deadline.
struct RunningCall {
  const ProcessGroup::State& group;
  CollectiveName name;
  Deadline deadline;
  bool deadline_from_wait = false;
  // In the list of the last calls that reports of crashes and hangs have.
  std::uint64_t ticket = recent_calls().start(name.operation, name.group, name.sequence);

  // Backends read 0 as "no timeout".
  std::chrono::milliseconds time_left() const {
    const auto left = deadline.remaining();
    if (name.timeout - left <= kTimeToBegin) return name.timeout;
    return std::max(left, std::chrono::milliseconds(1));
  }

  // `ends_call`: what is started is the call's last part.
  Work start(StartWork start_work, bool ends_call, std::string_view call_name = {}) const {
    c10::intrusive_ptr<c10d::Work> work;
    try {
      work = start_work(
          *group.backend,
          {.timeout = time_left(), .name = call_name, .deadline_from_wait = deadline_from_wait});
    } catch (...) {
      rethrow_named(name, {}, group.failure.get());
    }
    auto state = std::make_shared<Work::State>(
        std::move(work), name, deadline_from_wait ? std::nullopt : std::optional(deadline));
    state->store = group.store;
    state->while_waiting = group.while_waiting;
    state->failure = group.failure;
    state->world_size = group.world_size;
    state->recent_call = ticket;
    state->ends_call = ends_call;
    return Work(std::move(state));
  }

  Work run(const CollectiveOptions& options, StartWork start_work) const {
    Work work = start(start_work, true, options.name);
    failpoint("collective.started");
    if (!options.async_op) work.wait();
    failpoint("collective.done");
    return work;
  }

  // All ranks' `count` values in rank order. The exchange goes by the call's own name and deadline:
  // to the user it is part of the call.
  template <class Value>
  std::vector<Value> gather_from_all(const Value* values, std::size_t count) const {
    const StartedCheck gather = start_gather(values, count, false);
    gather.work.wait();
    return gathered<Value>(gather);
  }

  template <class Value>
  StartedCheck start_gather(const Value* values, std::size_t count, bool ends_call) const {
    const auto bytes = static_cast<std::int64_t>(count * sizeof(Value));
    at::Tensor ours = at::empty({bytes}, at::kByte);
    std::memcpy(ours.mutable_data_ptr(), values, count * sizeof(Value));
    ours = ours.to(group.device);
    at::Tensor all = at::empty({bytes * group.world_size}, ours.options());
    Work work =
        start([&](NativeBackend& backend,
                  const CallTerms& terms) { return backend.gather_for_check(all, ours, terms); },
              ends_call);
    return {.name = name, .all = std::move(all), .work = std::move(work)};
  }

  void check(const CallSignature& signature, bool ends_call) const {
    const CheckMessage message{.call = signature};
    finish_check(start_gather(&message, 1, ends_call));
  }

  void check_pairs(const ExchangeCounts& counts) const {
    const auto size = static_cast<std::size_t>(group.world_size);
    std::vector<std::int64_t> ours(counts.sent);
    ours.insert(ours.end(), counts.received.begin(), counts.received.end());
    const auto all = gather_from_all(ours.data(), ours.size());
    std::vector<PairCounts> pairs;
    for (std::size_t rank = 0; rank < size; ++rank) {
      const std::int64_t* of_rank = all.data() + rank * 2 * size;
      pairs.push_back({.sent = {of_rank, size}, .received = {of_rank + size, size}});
    }
    if (const auto difference = find_difference(pairs)) refuse(name, *difference);
  }
};

RunningCall begin_call(const CallSite& call, const CollectiveOptions& options) {
  const auto timeout = checked_timeout(call, options);
  check_name(call, options.name);
  const auto& group = call.group;
  return {.group = group,
          .name = {call.operation, group.name, group.rank, group.sequence++, timeout},
          .deadline = Deadline::after(timeout)};
}

}  // namespace

StartedCheck start_check(const CallSite& call, const CheckMessage& message) {
  return begin_call(call, {.async_op = true}).start_gather(&message, 1, true);
}

std::vector<CheckMessage> finish_check(const StartedCheck& check) {
  check.work.wait();
  const auto messages = gathered<CheckMessage>(check);
  std::vector<CallSignature> calls;
  for (const CheckMessage& message : messages) calls.push_back(message.call);
  if (const auto difference = find_difference(calls)) refuse(check.name, *difference);
  return messages;
}

Work start_collective(const CallSite& call, const CallSignature& signature,
                      const CollectiveOptions& options, StartWork start) {
  const auto& group = call.group;
  if (!group.backend) return {};
  const bool moves_nothing = signature.numel == 0;
  const bool is_compared = group.call_check == CallCheck::kExchange;
  if (moves_nothing && !is_compared && group.call_check != CallCheck::kBackend) return {};
  failpoint("collective.begin");
  const RunningCall running = begin_call(call, options);
  if (is_compared) {
    running.check(CallSignature(signature).named(options.name), moves_nothing);
    if (moves_nothing) return {};
  }
  failpoint("collective.checked");
  return running.run(options, start);
}

Work start_agreed(const CallSite& call, std::int64_t numel, const CollectiveOptions& options,
                  StartWork start) {
  if (!call.group.backend) return {};
  if (numel == 0 && call.group.call_check != CallCheck::kBackend) return {};
  return begin_call(call, options).run(options, start);
}

Work start_exchange(const CallSite& call, const CallSignature& signature,
                    const ExchangeCounts& counts, const CollectiveOptions& options,
                    StartWork start) {
  if (!call.group.backend) return {};
  const RunningCall running = begin_call(call, options);
  if (call.group.call_check == CallCheck::kExchange) {
    running.check(CallSignature(signature).named(options.name), false);
    running.check_pairs(counts);
  }
  return running.run(options, start);
}

Work start_message(const CallSite& call, const at::Tensor& tensor, std::optional<int> peer,
                   const CollectiveOptions& options, StartWork start) {
  if (tensor.numel() == 0) return {};
  const auto timeout = checked_timeout(call, options);
  const auto& group = call.group;
  const RunningCall running{
      .group = group,
      .name = {call.operation, group.name, group.rank, group.messages++, timeout, peer},
      .deadline = Deadline::after(timeout),
      .deadline_from_wait = options.deadline_from_wait};
  return running.run(options, start);
}

}  // namespace lockstep::inline internal
