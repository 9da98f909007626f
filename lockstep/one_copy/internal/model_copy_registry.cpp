#include <algorithm>
#include <atomic>
#include <map>
#include <unordered_map>

#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/internal/native_collectives.h"
#include "lockstep/one_copy/internal/model_copy.h"

namespace lockstep::inline internal {
namespace {

struct CopyRegistry {
  std::atomic<int> copies = 0;
  Mutex mutex;
  std::unordered_map<const void*, std::pair<std::weak_ptr<ModelCopy>, std::size_t>> places
      LOCKSTEP_GUARDED_BY(mutex);
};

CopyRegistry& copy_registry() {
  static auto* const of_process = new CopyRegistry();  // never destroyed
  return *of_process;
}

}  // namespace

bool has_shared_copies(const ProcessGroup& group) {
  return group.shares_memory() || !ranks_by_machine(group).empty();
}

bool ModelCopy::any() {
  return copy_registry().copies.load(std::memory_order_relaxed) > 0;
}

ModelCopy::Place ModelCopy::find(const at::Tensor& parameter) {
  CopyRegistry& registry = copy_registry();
  if (!any()) return {};
  const MutexLock lock(registry.mutex);
  const auto found = registry.places.find(parameter.unsafeGetTensorImpl());
  if (found == registry.places.end()) return {};
  return {.copy = found->second.first.lock(), .index = found->second.second};
}

void ModelCopy::add_to_registry() {
  CopyRegistry& registry = copy_registry();
  const MutexLock lock(registry.mutex);
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    registry.places[parameters_[index].unsafeGetTensorImpl()] = {weak_from_this(), index};
  }
  ++registry.copies;
  is_registered_ = true;
}

ModelCopy::~ModelCopy() {
  if (!is_registered_) return;
  // A gradient without elements is of no use to anybody else.
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    at::Tensor& gradient = parameters_[index].mutable_grad();
    if (gradient.is_same(placeholders_[index])) gradient.reset();
  }
  CopyRegistry& registry = copy_registry();
  const MutexLock lock(registry.mutex);
  for (const at::Tensor& parameter : parameters_) {
    const auto found = registry.places.find(parameter.unsafeGetTensorImpl());
    // Another copy may have taken the parameter since.
    if (found != registry.places.end() && found->second.first.expired()) {
      registry.places.erase(found);
    }
  }
  --registry.copies;
}

CopyPlaces::CopyPlaces(const std::vector<at::Tensor>& parameters)
    : CopyPlaces(parameters, [](const ModelCopy&, std::size_t) { return false; }) {}

CopyPlaces CopyPlaces::of_own_gradients(const std::vector<at::Tensor>& parameters) {
  return {parameters, [](const ModelCopy& copy, std::size_t index) { return copy.has_sum(index); }};
}

CopyPlaces::CopyPlaces(const std::vector<at::Tensor>& parameters, IsOrdinary is_ordinary) {
  std::vector<std::vector<bool>> is_known;
  for (const at::Tensor& parameter : parameters) {
    const ModelCopy::Place place = ModelCopy::find(parameter);
    if (!place.copy || is_ordinary(*place.copy, place.index)) {
      ordinary.push_back(parameter);
      continue;
    }
    const auto of_copy = std::ranges::find(copies, place.copy, &OfCopy::copy);
    const auto number = static_cast<std::size_t>(of_copy - copies.begin());
    if (of_copy == copies.end()) {
      copies.push_back({place.copy, {}});
      is_known.emplace_back(place.copy->parameters().size());
    }
    if (is_known[number][place.index]) continue;
    is_known[number][place.index] = true;
    copies[number].indices.push_back(place.index);
  }
}

ModelCopy::Squares CopyPlaces::average_in_place() const {
  ModelCopy::Squares squares;
  for (const auto& [copy, indices] : copies) {
    const ModelCopy::Squares of_copy = copy->average_in_place(indices);
    squares.current += of_copy.current;
    squares.of_backward += of_copy.of_backward;
  }
  return squares;
}

void CopyPlaces::scale_averages(float factor) const {
  for (const auto& [copy, indices] : copies) copy->scale_averages(indices, factor);
}

void CopyPlaces::clamp_averages(double most) const {
  for (const auto& [copy, indices] : copies) copy->clamp_averages(indices, most);
}

bool CopyPlaces::hold_gradients() const {
  return std::ranges::any_of(copies, [](const OfCopy& one) {
    return std::ranges::any_of(one.indices,
                               [&](std::size_t index) { return one.copy->holds_gradient(index); });
  });
}

bool CopyPlaces::are_torn() const {
  return std::ranges::any_of(copies, [](const OfCopy& one) { return one.copy->is_torn(); });
}

void CopyPlaces::leave() const {
  for (const auto& [copy, indices] : copies) copy->leave();
}

std::vector<at::Tensor> averaged_gradients_of(const std::vector<at::Tensor>& parameters) {
  std::map<std::shared_ptr<ModelCopy>, std::vector<at::Tensor>> averages;
  for (const auto& [copy, indices] : CopyPlaces(parameters).copies) {
    averages[copy] = copy->averaged_gradients();
  }
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    const auto [copy, index] = ModelCopy::find(parameter);
    gradients.push_back(copy ? averages.at(copy)[index] : parameter.grad());
  }
  return gradients;
}

CopySteps::~CopySteps() {
  if (copies_.empty()) return;
  const bool happens =
      phase_ == Phase::kCommitted || copies_[0]->decide_step(Decision::kVoid) == Decision::kUpdate;
  if (phase_ == Phase::kBegun) copies_[0]->tell_machines(/*refuses=*/true);
  for (const auto& copy : copies_) {
    if (happens) {
      copy->leave_step();
    } else {
      copy->abandon_step();
    }
  }
}

void CopySteps::begin(const std::vector<at::Tensor>& parameters, std::uint64_t digest) {
  const CopyPlaces places(parameters);
  for (const auto& [copy, indices] : places.copies) copy->check_step(indices);
  for (const auto& [copy, indices] : places.copies) {
    copies_.push_back(copy);
    copy->begin_step(indices, digest, *copies_[0]);
  }
  phase_ = Phase::kBegun;
}

void CopySteps::commit() {
  if (copies_.empty()) return;
  phase_ = Phase::kTold;
  copies_[0]->tell_machines(/*refuses=*/false);
  if (copies_[0]->decide_step(Decision::kUpdate) == Decision::kVoid) {
    copies_[0]->throw_void_step();
  }
  phase_ = Phase::kCommitted;
  for (const auto& copy : copies_) copy->commit_step();
}

void CopySteps::end(const std::function<void()>& run_shard) {
  LOCKSTEP_ASSERT(phase_ == Phase::kCommitted || copies_.empty());
  for (const auto& copy : copies_) copy->complete_share();
  for (const auto& copy : copies_) copy->set_idle(true);
  for (const auto& copy : copies_) copy->end_step(run_shard);
  for (const auto& copy : copies_) copy->set_idle(false);
  copies_.clear();
}

}  // namespace lockstep::inline internal
