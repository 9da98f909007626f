#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/ddp/exchange/flat_messages.h"
#include "lockstep/ddp/hooks.h"

namespace lockstep {

PeriodicModelAverager::PeriodicModelAverager(const PeriodicModelAveragerOptions& options)
    : options_(options),
      group_(options.process_group ? options.process_group : default_process_group()) {
  if (options_.period < 1) {
    throw UsageError(concat("PeriodicModelAverager: period=", options_.period,
                            " is not a number of steps; 1 averages after every one"));
  }
  if (options_.warmup_steps < 0) {
    throw UsageError(
        concat("PeriodicModelAverager: warmup_steps=", options_.warmup_steps, " is negative"));
  }
}

void PeriodicModelAverager::average_parameters(const std::vector<at::Tensor>& parameters) {
  const std::int64_t step = step_++;
  if (step < options_.warmup_steps || (step - options_.warmup_steps) % options_.period != 0) return;
  if (group_.world_size() == 1) return;
  exchange_flat(parameters, [&](const at::Tensor& message) {
    group_.all_reduce(message, {.op = ReduceOp::kAvg});
    return true;
  });
}

}  // namespace lockstep
