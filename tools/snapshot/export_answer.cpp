#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/snapshot/checkpoint/checksum_list.h"
#include "lockstep/snapshot/safetensors.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/state_dict.h"
#include "tools/snapshot/inspected_snapshot.h"
#include "tools/snapshot/snapshot_answers.h"
#include "tools/snapshot/text_table.h"

namespace lockstep::inline internal {
namespace {

/// Only the state of an ExponentialMovingAverage has it.
constexpr const char* kAverageCount = "n_averaged";

void check_choice(const char* flag, const std::string& value,
                  const std::vector<std::string>& choices) {
  if (std::ranges::find(choices, value) != choices.end()) return;
  std::string list;
  for (const std::string& choice : choices) list += (list.empty() ? "" : ", ") + choice;
  throw UsageError(concat("snapshot export: ", flag, "='", value, "'; it is one of ", list));
}

/// With its format.
ExportRequest checked(ExportRequest request) {
  const std::string extension = request.target.extension();
  if (request.format.empty() && extension == ".safetensors") request.format = "safetensors";
  if (request.format.empty() &&
      (extension == ".pt" || extension == ".pth" || extension == ".bin")) {
    request.format = "pt";
  }
  if (request.format.empty()) {
    throw UsageError(concat("snapshot export: unknown format of ", request.target,
                            "; give --format=safetensors or --format=pt"));
  }
  check_choice("--format", request.format, {"safetensors", "pt"});
  check_choice("--part", request.part, {"model", "optimizer", "ema"});
  if (request.part == "optimizer" && (request.format != "pt" || !request.prefix.empty())) {
    throw UsageError(
        "snapshot export: the state of an optimizer needs --format=pt, and has no --prefix");
  }
  return request;
}

c10::IValue optimizer_of(const InspectedSnapshot& snapshot) {
  const c10::IValue found =
      snapshot.tree.isGenericDict() ? find_value(snapshot.tree, "optimizer") : c10::IValue();
  if (!found.isGenericDict()) {
    throw UsageError(
        concat("snapshot export: ", snapshot.path, " has no optimizer; choose --part=model"));
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

TensorDict named_weights(const InspectedSnapshot& snapshot, const ExportRequest& request) {
  TensorDict weights = request.part == "ema" ? averages_of(snapshot) : snapshot.weights();
  for (auto& [name, tensor] : weights) name.insert(0, request.prefix);
  return weights;
}

}  // namespace

SnapshotAnswer export_answer(const ExportRequest& asked) {
  const ExportRequest request = checked(asked);
  std::error_code error;
  if (!request.force && std::filesystem::exists(request.target, error)) {
    throw UsageError(concat("snapshot export: ", request.target,
                            " exists; choose another name, or replace it with --force"));
  }
  const InspectedSnapshot snapshot = read_inspected(request.source);
  // That of what is replaced.
  std::filesystem::remove(checksum_list_path(request.target), error);
  if (request.part == "optimizer") {
    save(request.target, optimizer_of(snapshot));
  } else if (request.format == "safetensors") {
    save_safetensors(request.target, named_weights(snapshot, request), {{"format", "pt"}});
  } else {
    save(request.target, named_weights(snapshot, request));
  }
  return {.text = concat("wrote ", request.target.string(), ", ",
                         size_text(size_on_disk(request.target)), "\n")};
}

}  // namespace lockstep::inline internal
