#include "lockstep/ddp/internal/model_agreement.h"

#include <sstream>
#include <string>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/exchange_values.h"

namespace lockstep::inline internal {
namespace {

constexpr const char* kCallName = "models compared";

// One line a tensor: "parameter fc.weight float [10, 5] strides [5, 1]".
std::string describe_state(const ReplicaState& state, const std::string& options) {
  std::ostringstream text;
  text << options;
  for (const auto& [name, tensor] : state.parameters()) {
    text << "parameter " << name << " " << tensor.dtype() << " " << tensor.sizes() << " strides "
         << tensor.strides() << (tensor.requires_grad() ? "" : " frozen") << "\n";
  }
  for (const auto& [name, tensor] : state.buffers()) {
    text << "buffer " << name << " " << tensor.dtype() << " " << tensor.sizes() << "\n";
  }
  return text.str();
}

std::string first_difference(const std::string& ours, const std::string& reference) {
  std::istringstream our_lines(ours);
  std::istringstream reference_lines(reference);
  std::string our_line;
  std::string reference_line;
  for (;;) {
    if (!std::getline(our_lines, our_line)) our_line = "nothing more";
    if (!std::getline(reference_lines, reference_line)) reference_line = "nothing more";
    if (our_line != reference_line)
      return concat("it has ", our_line, " where rank 0 has ", reference_line);
  }
}

}  // namespace

void check_models_agree(const ProcessGroup& group, const ReplicaState& state,
                        const std::string& options, const char* operation) {
  if (group.world_size() == 1) return;
  const std::string ours = describe_state(state, options);
  const std::string reference = broadcast_text(group, ours, 0, kCallName);

  // The smallest rank that differs, or world_size when none does.
  const auto on_device = at::TensorOptions(at::kLong).device(group.device());
  const int own = ours == reference ? group.world_size() : group.rank();
  const at::Tensor culprit = at::empty({1}, on_device).fill_(own);
  group.all_reduce(culprit, {.op = ReduceOp::kMin, .name = kCallName});
  const int rank = culprit.item<int>();
  if (rank == group.world_size()) return;

  const bool is_culprit = rank == group.rank();
  const std::string difference =
      broadcast_text(group, is_culprit ? first_difference(ours, reference) : "", rank, kCallName);
  throw UsageError(concat(operation, " on rank ", group.rank(), ": the model of rank ", rank,
                          " differs from that of rank 0: ", difference,
                          "; build the same model with the same options on every rank"));
}

}  // namespace lockstep::inline internal
