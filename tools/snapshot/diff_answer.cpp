#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/pickle/storage_types.h"
#include "tools/snapshot/inspected_snapshot.h"
#include "tools/snapshot/snapshot_answers.h"
#include "tools/snapshot/tensor_statistics.h"
#include "tools/snapshot/text_table.h"

namespace lockstep::inline internal {
namespace {

std::string describe_shape(const at::Tensor& tensor) {
  return concat(dtype_name(tensor.scalar_type()), tensor.sizes());
}

/// The Trainer's epochs, samples and seconds; no two runs take the same time.
constexpr const char* kTrainerCounts = "values.registered.trainer.epochs_samples_seconds";

/// What is compared of a tensor.
at::Tensor compared(const std::string& name, const at::Tensor& tensor) {
  return name == kTrainerCounts && tensor.numel() == 3 ? tensor.view(3).narrow(0, 0, 2) : tensor;
}

/// Whether all tensors are compared, or the weights.
bool compares_all(const std::string& part, const InspectedSnapshot& a, const InspectedSnapshot& b) {
  if (part.empty()) return a.is_snapshot() && b.is_snapshot();
  if (part == "all" || part == "model") return part == "all";
  throw UsageError(concat("snapshot diff: --part='", part, "'; it is one of model, all"));
}

}  // namespace

SnapshotAnswer diff_answer(const DiffRequest& request, bool json) {
  const InspectedSnapshot a = read_inspected(request.first);
  const InspectedSnapshot b = read_inspected(request.second);
  const bool whole = compares_all(request.part, a, b);
  const TensorDict ours = whole ? a.tensors() : a.weights();
  const TensorDict theirs = whole ? b.tensors() : b.weights();
  std::map<std::string, at::Tensor> others(theirs.begin(), theirs.end());
  std::vector<std::string> missing;
  std::vector<std::string> reshaped;
  bool has_seconds = false;
  std::vector<std::vector<std::string>> rows = {
      {"TENSOR", "MAX ABSOLUTE", "MAX RELATIVE", "NON-FINITE"}};
  nlohmann::ordered_json differing = nlohmann::ordered_json::array();
  std::size_t identical = 0;
  std::size_t common = 0;
  for (const auto& [name, whole_tensor] : ours) {
    const auto found = others.extract(name);
    if (found.empty()) {
      missing.push_back(name);
      continue;
    }
    const at::Tensor tensor = compared(name, whole_tensor);
    const at::Tensor other = compared(name, found.mapped());
    has_seconds = has_seconds || tensor.numel() < whole_tensor.numel();
    ++common;
    if (tensor.sizes() != other.sizes()) {
      reshaped.push_back(concat(name, ": ", describe_shape(tensor), ", ", describe_shape(other)));
      continue;
    }
    const TensorDifference difference = difference_of(tensor, other);
    if (difference.identical) {
      ++identical;
      continue;
    }
    const auto dtypes =
        concat(" (", dtype_name(tensor.scalar_type()), ", ", dtype_name(other.scalar_type()), ")");
    rows.push_back({name + (tensor.scalar_type() == other.scalar_type() ? "" : dtypes),
                    number_text(difference.max_absolute), number_text(difference.max_relative),
                    std::to_string(difference.non_finite)});
    differing.push_back({{"name", name},
                         {"max_absolute", difference.max_absolute},
                         {"max_relative", difference.max_relative},
                         {"non_finite", difference.non_finite}});
  }
  std::vector<std::string> added;
  for (const auto& [name, tensor] : theirs) {
    if (others.contains(name)) added.push_back(name);
  }
  const bool same = missing.empty() && added.empty() && identical == common;
  SnapshotAnswer answer{.text = {}, .exit_code = same ? 0 : 1};
  if (json) {
    answer.text = json_text({{"tensors", common},
                             {"identical", identical},
                             {"missing", missing},
                             {"added", added},
                             {"reshaped", reshaped},
                             {"differing", differing}});
    return answer;
  }
  for (const std::string& name : missing) answer.text += concat("only in the first: ", name, "\n");
  for (const std::string& name : added) answer.text += concat("only in the second: ", name, "\n");
  for (const std::string& line : reshaped) answer.text += concat("different shape: ", line, "\n");
  if (rows.size() > 1) answer.text += text_table(rows, 1);
  answer.text += concat(identical, " of ", common, whole ? " tensors" : " weights",
                        " are identical to the bit\n");
  if (has_seconds) answer.text += "not compared: the seconds that the Trainer took\n";
  return answer;
}

}  // namespace lockstep::inline internal
