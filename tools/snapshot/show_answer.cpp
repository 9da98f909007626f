#include <nlohmann/json.hpp>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/snapshot/pickle/storage_types.h"
#include "lockstep/snapshot/save.h"
#include "tools/snapshot/inspected_snapshot.h"
#include "tools/snapshot/snapshot_answers.h"
#include "tools/snapshot/tensor_statistics.h"
#include "tools/snapshot/text_table.h"

namespace lockstep::inline internal {
namespace {

using Json = nlohmann::ordered_json;

/// A tensor of one element becomes its number.
Json json_of(const c10::IValue& value) {
  if (value.isNone()) return nullptr;
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isString()) return value.toStringRef();
  if (value.isTensor() && value.toTensor().numel() == 1 && !value.toTensor().is_complex()) {
    return value.toTensor().item().toDouble();
  }
  if (value.isTensor()) return "a tensor";
  Json json = Json::array();
  if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) json.push_back(json_of(item));
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) json.push_back(json_of(item));
  } else if (value.isGenericDict()) {
    json = Json::object();
    for (const auto& item : value.toGenericDict()) {
      json[item.key().isString() ? item.key().toStringRef() : concat(item.key())] =
          json_of(item.value());
    }
  }
  return json;
}

/// The optimizer's groups, with the number of parameters instead of their list.
Json groups_of(const c10::IValue& tree) {
  Json groups = Json::array();
  if (!tree.isGenericDict()) return groups;
  const c10::IValue optimizer = find_value(tree, "optimizer");
  if (!optimizer.isGenericDict()) return groups;
  const c10::IValue list = find_value(optimizer, "param_groups");
  if (!list.isList()) return groups;
  for (const c10::IValue& item : list.toListRef()) {
    Json group = json_of(item);
    if (group.contains("params")) group["params"] = group["params"].size();
    groups.push_back(group);
  }
  return groups;
}

Json about_of(const InspectedSnapshot& snapshot) {
  Json about = {{"path", snapshot.path.string()},
                {"kind", kind_name(snapshot.kind)},
                {"bytes", snapshot.size_bytes}};
  if (snapshot.is_snapshot()) {
    about["lockstep"] = json_of(find_value(find_value(snapshot.tree, "lockstep"), "version"));
    for (const char* name : {"epoch", "step", "world_size"}) {
      about[name] = json_of(find_value(snapshot.tree, name));
    }
  }
  for (const auto& [key, value] : snapshot.metadata) about["metadata"][key] = value;
  return about;
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

SnapshotAnswer show_answer(const std::filesystem::path& path, bool json) {
  const InspectedSnapshot snapshot = read_inspected(path);
  Json object = about_of(snapshot);
  const Json groups = groups_of(snapshot.tree);
  std::vector<std::vector<std::string>> rows = {
      {"TENSOR", "DTYPE", "SHAPE", "BYTES", "MEAN", "STD", "NORM", "NON-FINITE"}};
  Json tensors = Json::array();
  for (const auto& [name, tensor] : snapshot.tensors()) {
    const TensorStatistics found = statistics_of(tensor);
    const std::string shape = Json(tensor.sizes().vec()).dump();
    const std::string dtype(dtype_name(tensor.scalar_type()));
    if (!json) {
      rows.push_back({name, dtype, shape, std::to_string(tensor.nbytes()), number_text(found.mean),
                      number_text(found.std), number_text(found.norm),
                      std::to_string(found.non_finite)});
      continue;
    }
    tensors.push_back({{"name", name},
                       {"dtype", dtype},
                       {"shape", tensor.sizes().vec()},
                       {"bytes", tensor.nbytes()},
                       {"mean", found.mean},
                       {"std", found.std},
                       {"norm", found.norm},
                       {"non_finite", found.non_finite}});
  }
  if (json) {
    object["optimizer_groups"] = groups;
    object["tensors"] = tensors;
    return {.text = json_text(object)};
  }
  std::string text;
  for (const auto& [key, value] : object.items()) {
    text += concat(key, ": ", text_of(value));
    if (key == "bytes") text += concat(" (", size_text(snapshot.size_bytes), ")");
    text += "\n";
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    text += concat("optimizer group ", i, ":");
    for (const auto& [key, value] : groups[i].items())
      text += concat(" ", key, " ", text_of(value));
    text += "\n";
  }
  return {.text = text + "\n" + text_table(rows, 3)};
}

}  // namespace lockstep::inline internal
