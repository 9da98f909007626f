#include "lockstep/ddp/internal/fingerprint.h"

#include <sstream>
#include <tuple>
#include <unordered_map>

#include <xxhash.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/internal/optimizer_kinds.h"
#include "lockstep/snapshot/state_dict.h"

namespace lockstep::inline internal {
namespace {

std::uint64_t hash_text(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

std::uint64_t hash_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return hash_text("none");
  const at::Tensor local = tensor.detach().cpu().contiguous();
  const std::uint64_t kind = hash_text(concat(local.dtype(), " ", local.sizes()));
  if (local.nbytes() == 0) return kind;
  return XXH3_64bits_withSeed(local.const_data_ptr(), local.nbytes(), kind);
}

// Of the numbers that optimizers have beside tensors.
template <class Number>
std::uint64_t hash_of(const Number& number) {
  return XXH3_64bits(&number, sizeof(number));
}
std::uint64_t hash_of(const std::tuple<double, double>& pair) {
  const double numbers[] = {std::get<0>(pair), std::get<1>(pair)};
  return XXH3_64bits(numbers, sizeof(numbers));
}

template <class Kind>
void add_optimizer(const Kind&, Fingerprints& fingerprints,
                   const torch::optim::Optimizer& optimizer,
                   const std::unordered_map<const void*, std::string>& names) {
  const auto add = [&](const char* name, const std::string& of, const auto& value) {
    fingerprints.push_back({concat(name, " of ", of), hash_of(value)});
  };
  const bool is_sharded = dynamic_cast<const ShardedState*>(&optimizer) != nullptr;
  std::size_t group_number = 0;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    const std::string group_name = concat("parameter group ", group_number++);
    Kind::visit_options(static_cast<const typename Kind::Options&>(group.options()),
                        [&](const char* name, const auto& value) { add(name, group_name, value); });
    for (std::size_t i = 0; i < group.params().size() && !is_sharded; ++i) {
      const void* const key = group.params()[i].unsafeGetTensorImpl();
      const auto state = optimizer.state().find(const_cast<void*>(key));
      if (state == optimizer.state().end()) continue;
      const auto named = names.find(key);
      const std::string name =
          named == names.end() ? concat("parameter ", i, " of ", group_name) : named->second;
      Kind::visit_state(static_cast<const typename Kind::State&>(*state->second),
                        [&](const char* part, const auto& value) { add(part, name, value); });
    }
  }
}

}  // namespace

Fingerprints fingerprints_of(const std::vector<NamedTensor>& tensors) {
  Fingerprints fingerprints;
  for (const auto& [name, tensor] : tensors) fingerprints.push_back({name, hash_of(tensor)});
  return fingerprints;
}

void add_fingerprints(Fingerprints& fingerprints, const torch::optim::Optimizer& optimizer,
                      const std::vector<NamedTensor>& tensors) {
  std::unordered_map<const void*, std::string> names;
  for (const auto& [name, tensor] : tensors) names.emplace(tensor.unsafeGetTensorImpl(), name);
  const bool is_known = with_optimizer_kind(
      optimizer, [&](auto kind) { add_optimizer(kind, fingerprints, optimizer, names); });
  if (is_known) return;
  throw UsageError(concat("check_replicas_agree: the state of this optimizer is not known; use ",
                          kKnownOptimizers, ", or leave the optimizer out"));
}

std::uint64_t combined_hash(const Fingerprints& fingerprints) {
  return hash_text(write_fingerprints(fingerprints));
}

std::string write_fingerprints(const Fingerprints& fingerprints) {
  std::ostringstream text;
  for (const auto& [name, hash] : fingerprints) text << hash << " " << name << "\n";
  return text.str();
}

Fingerprints read_fingerprints(std::string_view text) {
  std::istringstream lines{std::string(text)};
  Fingerprints fingerprints;
  Fingerprint one;
  while (lines >> one.hash && lines.get() == ' ' && std::getline(lines, one.name)) {
    fingerprints.push_back(one);
  }
  return fingerprints;
}

}  // namespace lockstep::inline internal
