#include "lockstep/snapshot/sharded/share_tree.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <queue>
#include <utility>

#include "lockstep/snapshot/internal/value_tree.h"
#include "lockstep/snapshot/pickle/storage_types.h"
#include "lockstep/snapshot/save.h"

namespace lockstep::inline internal {
namespace {

constexpr const char* kState = "state";

std::uint64_t bytes_of(const c10::IValue& tree) {
  std::uint64_t bytes = 0;
  visit_tensors(tree, [&](const std::string&, const at::Tensor& tensor) {
    bytes += tensor.defined() ? tensor.nbytes() : 0;
  });
  return bytes;
}

/// Files hold storages whole: of a view into a larger one, that would be all of it.
at::Tensor alone(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) return tensor;
  return tensor.storage().nbytes() > tensor.nbytes() ? tensor.detach().clone() : tensor;
}

/// The same dict without the tensors that `is_kept` refuses; it is asked in their order.
template <class IsKept>
c10::IValue kept_states(const c10::IValue& states, const IsKept& is_kept) {
  c10::impl::GenericDict result = make_dict();
  for (const auto& item : states.toGenericDict()) {
    c10::impl::GenericDict state = make_dict();
    for (const auto& field : item.value().toGenericDict()) {
      if (!field.value().isTensor()) {
        state.insert_or_assign(field.key(), field.value());
      } else if (is_kept()) {
        state.insert_or_assign(field.key(), alone(field.value().toTensor()));
      }
    }
    if (state.size() > 0) result.insert_or_assign(item.key(), state);
  }
  return result;
}

c10::IValue with_states(const c10::IValue& optimizer, const c10::IValue& states) {
  c10::impl::GenericDict result = make_dict();
  for (const auto& item : optimizer.toGenericDict()) {
    const bool is_state = item.key().isString() && item.key().toStringRef() == kState;
    result.insert_or_assign(item.key(), is_state ? states : item.value());
  }
  return result;
}

}  // namespace

std::vector<std::uint64_t> replicated_bytes(const Snapshot& snapshot, StatePlacement optimizer) {
  std::vector<std::uint64_t> bytes;
  const auto add = [&](const std::string&, const at::Tensor& tensor) {
    bytes.push_back(tensor.nbytes());
  };
  for (const auto& [name, tensor] : snapshot.model) add(name, tensor);
  if (optimizer == StatePlacement::kReplicated) {
    visit_tensors(find_value(snapshot.optimizer, kState), add);
  }
  return bytes;
}

std::uint64_t own_bytes(const Snapshot& snapshot, StatePlacement optimizer) {
  std::uint64_t bytes = bytes_of(tensor_dict_value(snapshot.extra)) + bytes_of(snapshot.values) +
                        bytes_of(tensor_list_value(snapshot.random_state)) +
                        bytes_of(tensor_list_value(snapshot.cuda_random_state));
  if (optimizer == StatePlacement::kSharded)
    bytes += bytes_of(find_value(snapshot.optimizer, kState));
  return bytes;
}

Snapshot share_of(Snapshot snapshot, StatePlacement optimizer, const std::vector<int>& owners,
                  int rank) {
  std::size_t next = 0;
  const auto is_kept = [&] { return owners.at(next++) == rank; };
  TensorDict model;
  for (const auto& [name, tensor] : snapshot.model) {
    if (is_kept()) model.emplace_back(name, alone(tensor));
  }
  snapshot.model = std::move(model);
  const c10::IValue states = find_value(snapshot.optimizer, kState);
  snapshot.optimizer =
      with_states(snapshot.optimizer, optimizer == StatePlacement::kReplicated
                                          ? kept_states(states, is_kept)
                                          : kept_states(states, [] { return true; }));
  return snapshot;
}

Snapshot join_shares(std::vector<Snapshot> shares, const SnapshotManifest& manifest) {
  std::map<std::string, at::Tensor> model;
  std::map<std::int64_t, c10::impl::GenericDict> states;
  for (const Snapshot& share : shares) {
    for (const auto& [name, tensor] : share.model) model.emplace(name, tensor);
    for (const auto& item : find_value(share.optimizer, kState).toGenericDict()) {
      auto& state = states.try_emplace(item.key().toInt(), make_dict()).first->second;
      for (const auto& field : item.value().toGenericDict()) {
        state.insert_or_assign(field.key(), field.value());
      }
    }
  }
  Snapshot joined = std::move(shares.front());
  joined.model.clear();
  constexpr std::string_view kModel = "model.";
  for (const ManifestTensor& tensor : manifest.tensors) {
    if (!tensor.name.starts_with(kModel)) continue;
    const auto found = model.find(tensor.name.substr(kModel.size()));
    if (found != model.end()) joined.model.emplace_back(found->first, found->second);
  }
  c10::impl::GenericDict all_states = make_dict();
  for (const auto& [index, state] : states) all_states.insert_or_assign(index, state);
  joined.optimizer = with_states(joined.optimizer, all_states);
  return joined;
}

std::vector<ManifestTensor> described_tensors(const c10::IValue& tree) {
  std::vector<ManifestTensor> tensors;
  visit_tensors(tree, [&](const std::string& name, const at::Tensor& tensor) {
    tensors.push_back({.name = name,
                       .file = 0,
                       .dtype = std::string(dtype_name(tensor.scalar_type())),
                       .shape = tensor.sizes().vec()});
  });
  return tensors;
}

std::vector<int> plan_shares(const std::vector<std::uint64_t>& tensor_bytes,
                             std::vector<std::uint64_t> kept_bytes) {
  std::vector<std::size_t> order(tensor_bytes.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](std::size_t i) { return tensor_bytes[i]; });
  using Load = std::pair<std::uint64_t, int>;  // Bytes and rank: of equal ranks the lowest.
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (std::size_t rank = 0; rank < kept_bytes.size(); ++rank) {
    loads.emplace(kept_bytes[rank], static_cast<int>(rank));
  }
  std::vector<int> owners(tensor_bytes.size());
  for (const std::size_t i : order) {
    const auto [bytes, rank] = loads.top();
    loads.pop();
    owners[i] = rank;
    loads.emplace(bytes + tensor_bytes[i], rank);
  }
  return owners;
}

}  // namespace lockstep::inline internal
