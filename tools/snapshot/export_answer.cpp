#include <optional>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/safetensors.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/state_dict.h"
#include "tools/snapshot/inspected_snapshot.h"
#include "tools/snapshot/snapshot_answers.h"
#include "tools/snapshot/text_table.h"

namespace lockstep::inline internal {
namespace {

/// By which the state of an ExponentialMovingAverage is known among others.
constexpr const char* kAverageCount = "n_averaged";

c10::IValue optimizer_of(const InspectedSnapshot& snapshot) {
  const c10::IValue found =
      snapshot.tree.isGenericDict() ? find_value(snapshot.tree, "optimizer") : c10::IValue();
  if (!found.isGenericDict()) {
    throw UsageError(concat("snapshot export: ", snapshot.path,
                            " has no optimizer; choose "
                            "--part=model"));
  }
  return found;
}

/// The first dict in the tree that holds averages.
std::optional<c10::IValue> average_in(const c10::IValue& value) {
  if (value.isGenericDict()) {
    if (find_value(value, kAverageCount).isTensor()) return value;
    for (const auto& item : value.toGenericDict()) {
      if (auto found = average_in(item.value())) return found;
    }
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (auto found = average_in(item)) return found;
    }
  }
  return std::nullopt;
}

TensorDict averages_of(const InspectedSnapshot& snapshot) {
  const auto found = average_in(snapshot.tree);
  if (!found) {
    throw UsageError(concat("snapshot export: ", snapshot.path,
                            " has no averaged weights; save those of an ExponentialMovingAverage "
                            "with it, or choose --part=model"));
  }
  TensorDict averages;
  for (const auto& item : found->toGenericDict()) {
    if (!item.value().isTensor() || item.key().toStringRef() == kAverageCount) continue;
    averages.emplace_back(item.key().toStringRef(), item.value().toTensor());
  }
  return without_prefix(std::move(averages));
}

/// The weights by the names that were asked for.
TensorDict named_weights(const InspectedSnapshot& snapshot, const ExportRequest& request) {
  TensorDict weights = request.part == "ema" ? averages_of(snapshot) : snapshot.weights();
  for (auto& [name, tensor] : weights) name.insert(0, request.prefix);
  return weights;
}

void write_safetensors(const std::filesystem::path& path, const TensorDict& weights) {
  save_safetensors(path, weights, {{"format", "pt"}});
}

/// The layout of accelerate's save_state(): a file for each model and each optimizer.
void write_accelerate(const InspectedSnapshot& snapshot, const ExportRequest& request) {
  const c10::IValue first_optimizer = optimizer_of(snapshot);
  const TensorDict weights = named_weights(snapshot, request);
  std::error_code error;
  std::filesystem::create_directories(request.target, error);
  if (error) {
    throw SystemError(concat("make the directory ", request.target), error.value(),
                      "choose one that this process may write");
  }
  write_safetensors(request.target / "model.safetensors", weights);
  save(request.target / "optimizer.bin", first_optimizer);
  const c10::IValue values = find_value(snapshot.tree, "values");
  if (!values.isGenericDict()) return;
  const auto each = [&](const char* list, const auto& write) {
    const c10::IValue items = find_value(values, list);
    if (!items.isList()) return;
    for (std::size_t i = 0; i < items.toListRef().size(); ++i) write(i + 1, items.toListRef()[i]);
  };
  each("more_models", [&](std::size_t i, const c10::IValue& model) {
    write_safetensors(request.target / concat("model_", i, ".safetensors"),
                      tensor_dict(model, "export a model"));
  });
  each("more_optimizers", [&](std::size_t i, const c10::IValue& optimizer) {
    save(request.target / concat("optimizer_", i, ".bin"), optimizer);
  });
}

}  // namespace

SnapshotAnswer export_answer(const ExportRequest& request) {
  std::error_code error;
  if (!request.force && std::filesystem::exists(request.target, error)) {
    throw UsageError(concat("snapshot export: ", request.target,
                            " is there already; choose another name, or replace it with --force"));
  }
  const InspectedSnapshot snapshot = read_inspected(request.source);
  if (request.format == "accelerate") {
    write_accelerate(snapshot, request);
  } else if (request.part == "optimizer") {
    save(request.target, optimizer_of(snapshot));
  } else if (request.format == "safetensors") {
    write_safetensors(request.target, named_weights(snapshot, request));
  } else {
    save(request.target, named_weights(snapshot, request));
  }
  return {.text = concat("wrote ", request.target.string(), ", ",
                         size_text(size_on_disk(request.target)), "\n")};
}

}  // namespace lockstep::inline internal
