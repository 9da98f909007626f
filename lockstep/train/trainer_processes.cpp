#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include <torch/csrc/jit/serialization/pickle.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/job/internal/launched_place.h"
#include "lockstep/spawn/spawn.h"
#include "lockstep/train/trainer.h"

namespace lockstep {
namespace {

// How many of the job's processes run on this machine.
int local_world_size() {
  if (const auto size = env::integer(env::kLocalWorldSize)) return *size;
  const auto place = launched_place();
  return place ? place->local_world_size : 1;
}

int world_size() {
  if (const auto size = env::integer(env::kWorldSize)) return *size;
  const auto place = launched_place();
  return place ? place->world_size : 1;
}

}  // namespace

bool Trainer::is_global_zero() const {
  return launched_rank().value_or(0) == 0 && !repeats_first_process();
}

c10::IValue internal::to_value(const Metrics& metrics) {
  c10::List<std::string> names;
  c10::List<double> values;
  for (const auto& [name, value] : metrics) {
    names.push_back(name);
    values.push_back(value);
  }
  return std::tuple(names, values);
}

void internal::from_value(const c10::IValue& value, Metrics& metrics) {
  const auto& parts = value.toTupleRef().elements();
  const auto names = parts[0].toList();
  const auto values = parts[1].toDoubleList();
  for (std::size_t i = 0; i < names.size(); ++i) {
    metrics.emplace_back(names.get(i).toStringRef(), values.get(i));
  }
}

c10::IValue internal::to_value(const FitResult& result) {
  const TrainingTime& time = result.time;
  return std::tuple(static_cast<std::int64_t>(result.end), result.reason, time.epochs, time.batches,
                    time.samples, time.seconds, to_value(result.metrics));
}

void internal::from_value(const c10::IValue& value, FitResult& result) {
  const auto& parts = value.toTupleRef().elements();
  result.end = static_cast<FitEnd>(parts[0].toInt());
  result.reason = parts[1].toStringRef();
  result.time = {.epochs = parts[2].toInt(),
                 .batches = parts[3].toInt(),
                 .samples = parts[4].toInt(),
                 .seconds = parts[5].toDouble()};
  from_value(parts[6], result.metrics);
}

c10::IValue internal::to_value(const at::Tensor& tensor) {
  return tensor;
}

void internal::from_value(const c10::IValue& value, at::Tensor& tensor) {
  tensor = value.toTensor();
}

bool internal::starts_processes(const TrainerOptions& options) {
  if (launched_rank()) {
    const bool is_own = env::text(env::kSpawn).has_value();
    if (options.num_nodes > 0 && !is_own &&
        options.num_nodes * local_world_size() != world_size()) {
      throw UsageError(concat("Trainer: num_nodes is ", options.num_nodes,
                              ", but the launcher started ", world_size(), " processes, ",
                              local_world_size(), " on this machine"));
    }
    return options.devices > 1 && is_own;
  }
  if (options.num_nodes > 1) {
    throw UsageError(concat("Trainer: num_nodes is ", options.num_nodes,
                            ", which needs a launcher: start the program on each machine by "
                            "lockstep run --nnodes=",
                            options.num_nodes, " --nproc-per-node=", options.devices));
  }
  return options.devices > 1;
}

c10::IValue internal::run_in_processes(const TrainerOptions& options,
                                       const std::function<c10::IValue()>& body) {
  const std::string bytes = spawn_for_result(
      [&](int rank) {
        const c10::IValue value = body();
        if (rank != 0) return std::string();
        const std::vector<char> pickled = torch::jit::pickle_save(value);
        return std::string(pickled.begin(), pickled.end());
      },
      options.devices);
  return torch::jit::pickle_load({bytes.begin(), bytes.end()});
}

}  // namespace lockstep
