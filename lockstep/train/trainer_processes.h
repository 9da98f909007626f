#pragma once

#include <functional>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/train/fit_result.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

// What a Trainer's processes hand to the one that started them.
c10::IValue to_value(const FitResult& result);
c10::IValue to_value(const Metrics& metrics);
c10::IValue to_value(const at::Tensor& tensor);
void from_value(const c10::IValue& value, FitResult& result);
void from_value(const c10::IValue& value, Metrics& metrics);
void from_value(const c10::IValue& value, at::Tensor& tensor);

/// Whether the Trainer is to start processes of its own. Errors: UsageError where num_nodes wants
/// machines that no launcher has given.
bool starts_processes(const TrainerOptions& options);

/// `body` in `devices` new processes, and what it returned on rank 0. Errors: as spawn().
c10::IValue run_in_processes(const TrainerOptions& options,
                             const std::function<c10::IValue()>& body);

/// `body` on all ranks: in this process where it is one or the only one, else in new ones.
template <class Body>
auto run_on_ranks(const TrainerOptions& options, const Body& body) {
  if (!starts_processes(options)) return body();
  decltype(body()) result{};
  from_value(run_in_processes(options, [&] { return to_value(body()); }), result);
  return result;
}

}  // namespace lockstep
