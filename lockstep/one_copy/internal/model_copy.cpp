#include "lockstep/one_copy/internal/model_copy.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/element_of.h"
#include "lockstep/comm/internal/machine_group.h"
#include "lockstep/comm/internal/native_collectives.h"
#include "lockstep/one_copy/internal/hash.h"
#include "lockstep/one_copy/internal/kept_memory.h"
#include "lockstep/one_copy/internal/pass_files.h"
#include "lockstep/os/memory/freed_memory.h"

namespace lockstep::inline internal {
namespace {

constexpr std::align_val_t kLine{64};
// In the place of an offset: a gradient of which peers read no elements. No gradient lies there.
constexpr std::int64_t kOfNoElements = 1;

std::byte* allocate_lines(std::size_t bytes) {
  return static_cast<std::byte*>(::operator new(bytes, kLine));
}

[[noreturn]] void refuse_parameter(const std::string& name, const std::string& reason) {
  throw UsageError(concat("one_copy_per_machine: parameter '", name, "' ", reason));
}

std::vector<Element> elements_of(const std::vector<at::Tensor>& parameters,
                                 const std::vector<std::string>& names) {
  std::vector<Element> elements;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto element = element_of(parameters[i].scalar_type());
    if (!element || !is_floating_point(*element) || !parameters[i].is_cpu()) {
      refuse_parameter(names[i], concat("is ", c10::toString(parameters[i].scalar_type()), " on ",
                                        parameters[i].device().str(),
                                        "; supported are float32, float64, bfloat16 and float16 "
                                        "on the CPU; leave the option out"));
    }
    if (parameters[i].layout() != at::kStrided || !parameters[i].is_non_overlapping_and_dense()) {
      refuse_parameter(names[i], "has gaps in memory; make it contiguous before it is wrapped");
    }
    elements.push_back(*element);
  }
  return elements;
}

CopyLayout layout_of(const std::vector<at::Tensor>& parameters, int ranks) {
  std::vector<CopyLayout::Item> items;
  for (const at::Tensor& parameter : parameters) {
    items.push_back({.elements = parameter.numel(),
                     .element_bytes = static_cast<std::int64_t>(parameter.element_size())});
  }
  return {std::move(items), ranks};
}

int fewest_ranks(const std::vector<std::vector<int>>& machines, int otherwise) {
  std::size_t fewest = static_cast<std::size_t>(otherwise);
  for (const auto& ranks : machines) fewest = std::min(fewest, ranks.size());
  return static_cast<int>(fewest);
}

}  // namespace

void ModelCopy::Free::operator()(std::byte* memory) const {
  ::operator delete(memory, kLine);
}

// Parameters that the layout puts elsewhere were moved, or are another model's.
std::shared_ptr<CopyMemory> ModelCopy::find_kept(const ProcessGroup& group,
                                                 const std::vector<at::Tensor>& parameters) {
  const std::optional<KeptMemory> kept = keep_memory(group, parameters);
  if (!kept || kept->memories().size() != 1) return nullptr;
  const std::shared_ptr<CopyMemory>& memory = kept->memories().front();
  const CopyLayout layout = layout_of(parameters, group.world_size());
  const bool lie_there = std::ranges::all_of(kept->bindings(), [&](const auto& binding) {
    return binding.place.offset == layout.parameter(binding.parameter);
  });
  const bool is_whole =
      memory->types().size() == parameters.size() && memory->data_bytes() == layout.bytes();
  return kept->has_all_trained() && lie_there && is_whole ? memory : nullptr;
}

std::shared_ptr<ModelCopy> ModelCopy::make(const ProcessGroup& group, const std::string& name,
                                           std::shared_ptr<CopyMemory> kept,
                                           std::vector<at::Tensor> parameters,
                                           std::vector<std::string> names) {
  const c10::NoGradGuard no_grad;
  std::shared_ptr<ModelCopy> copy(new ModelCopy(group, ranks_by_machine(group), name,
                                                std::move(parameters), std::move(names),
                                                std::move(kept)));
  copy->move_parameters();
  copy->add_to_registry();
  // Where a rank is lost before, the others keep it for the next generation.
  copy->memory_->claim();
  return copy;
}

ModelCopy::ModelCopy(const ProcessGroup& group, std::vector<std::vector<int>> machines,
                     std::string name, std::vector<at::Tensor> parameters,
                     std::vector<std::string> names, std::shared_ptr<CopyMemory> kept)
    : group_(group),
      machines_(std::move(machines)),
      local_(machines_.empty() ? group : machine_group(group, machines_)),
      name_(std::move(name)),
      parameters_(std::move(parameters)),
      names_(std::move(names)),
      elements_(elements_of(parameters_, names_)),
      layout_(layout_of(parameters_, local_.world_size())),
      averages_(layout_of(parameters_, fewest_ranks(machines_, local_.world_size()))),
      memory_(std::move(kept)),
      is_kept_(memory_ != nullptr),
      scratch_(allocate_lines(kChunkBytes)),
      zeros_(allocate_lines(kChunkBytes)),
      held_(parameters_.size()),
      states_(parameters_.size()),
      running_share_(local_.rank()),
      sources_(parameters_.size()) {
  std::memset(zeros_.get(), 0, kChunkBytes);
  if (!is_kept_) check_parameters();
  make_memory();
  log_ = std::make_unique<StepLog>(log_memory_, memory_->shared(), log_sizes(), local_.rank());
  log_->join();
}

// Rank 0 makes the files. The log is of these ranks alone.
void ModelCopy::make_memory() {
  const bool is_first = local_.rank() == 0;
  const std::uint64_t log_bytes = StepLog::bytes(log_sizes());
  std::vector<UniqueFd> files;
  if (is_first) {
    files.push_back(make_memory_file(concat("lockstep log of ", name_).c_str(), log_bytes));
    if (!is_kept_) {
      CopyMemory::Files made = CopyMemory::make_files(name_, layout_.bytes());
      files.push_back(std::move(made.data));
      files.push_back(std::move(made.gradients));
      files.push_back(std::move(made.past));
    }
  }
  std::vector<int> own;
  for (const UniqueFd& file : files) own.push_back(file.get());
  std::vector<UniqueFd> received = pass_files(local_,
                                              {.receivers = local_.world_size() - 1,
                                               .is_receiver = !is_first,
                                               .files = is_kept_ ? 1 : 1 + CopyMemory::kFiles},
                                              own);
  if (!is_first) files = std::move(received);
  log_memory_ = SharedMapping(files[0].get(), log_bytes);
  if (!is_kept_) {
    memory_ = CopyMemory::map({.data = std::move(files[1]),
                               .gradients = std::move(files[2]),
                               .past = std::move(files[3])},
                              CopyMemory::StateTypes(parameters_.size()), 0);
  }
  memory_->assign_slots(local_);
}

// Each parameter gets memory of its own.
void ModelCopy::check_parameters() const {
  std::map<std::uintptr_t, std::size_t> by_end;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].numel() == 0) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(parameters_[i].const_data_ptr());
    const std::uintptr_t end = begin + parameters_[i].nbytes();
    const auto next = by_end.upper_bound(begin);
    if (next != by_end.end()) {
      const at::Tensor& other = parameters_[next->second];
      if (reinterpret_cast<std::uintptr_t>(other.const_data_ptr()) < end) {
        refuse_parameter(names_[i], concat("shares memory with '", names_[next->second],
                                           "'; register one tensor under both names"));
      }
    }
    by_end[end] = i;
  }
}

void ModelCopy::move_parameters() {
  for (std::size_t i = 0; i < parameters_.size() && !is_kept_; ++i) {
    const Part own_part = part(i);
    const std::int64_t bytes = element_bytes_of(i);
    const auto count = static_cast<std::uint64_t>(own_part.size() * bytes);
    if (count == 0) continue;
    const std::int64_t begin = own_part.begin * bytes;
    memory_->shared().populate(layout_.parameter(i) + static_cast<std::uint64_t>(begin), count);
    std::memcpy(parameter_at(i, own_part.begin),
                static_cast<const std::byte*>(parameters_[i].const_data_ptr()) + begin, count);
  }
  meet("copy of ");
  // Locked memory is copied at once (mlockall), and does not show what other ranks write.
  if (!memory_->own().own_pages().empty()) {
    throw UsageError(
        "one_copy_per_machine: this process locks its memory (mlockall), which keeps it from "
        "seeing "
        "what other ranks write; do not lock it, or leave the option out");
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    views_.push_back(tensor_over(layout_.parameter(i), parameter, parameter.scalar_type()));
    // Of another copy, or of an earlier generation's.
    at::Tensor& seen = parameters_[i].mutable_grad();
    if (seen.defined() && seen.is_meta()) seen.reset();
    placeholders_.push_back(at::empty_strided(parameter.sizes(), parameter.strides(),
                                              at::TensorOptions(at::kBool).device(at::kMeta)));
    parameters_[i].set_data(views_[i]);
  }
  // Else each rank keeps the size of the model for allocations that are smaller.
  if (!is_kept_) release_freed_memory();
}

at::Tensor ModelCopy::tensor_over(std::uint64_t offset, const at::Tensor& model,
                                  at::ScalarType dtype) const {
  return at::from_blob(
      own(offset), model.sizes(), model.strides(), [memory = memory_](void*) {},
      at::TensorOptions(dtype));
}

void ModelCopy::meet(const char* what) const {
  barrier_of_machine(group_, {.name = what + name_});
}

int ModelCopy::rank_of(int local_rank) const {
  for (const auto& ranks : machines_) {
    if (std::ranges::find(ranks, group_.rank()) != ranks.end()) {
      return ranks[static_cast<std::size_t>(local_rank)];
    }
  }
  return local_rank;
}

void ModelCopy::before_gradient(std::size_t index) {
  // Survivors may still read the gradients of the last step.
  if (is_broken_) throw_broken();
  if (has_sum(index)) held_[index] = {};
  at::Tensor& gradient = parameters_[index].mutable_grad();
  if (!gradient.defined() || !gradient.is_meta()) return;
  check_placeholder("backward of ", index);
  if (holds_gradient(index)) {
    throw UsageError(concat(
        "backward of ", name_, " on rank ", group_.rank(), ": the gradient of '", names_[index],
        "' of the last backward was not used; with one_copy_per_machine call step() of an "
        "optimizer of Lockstep, or zero_grad(), before the next backward, and no_sync() for "
        "micro-batches"));
  }
  held_[index] = {};
  gradient.reset();
}

// Of what the program computes from a placeholder nothing can be known.
void ModelCopy::check_placeholder(const char* call, std::size_t index) const {
  const at::Tensor& gradient = parameters_[index].grad();
  const auto memory_of = [](const at::Tensor& tensor) {
    return tensor.storage().unsafeGetStorageImpl();
  };
  if (memory_of(gradient) == memory_of(placeholders_[index])) return;
  throw UsageError(concat(call, name_, " on rank ", group_.rank(), ": .grad of '", names_[index],
                          "' was replaced by a tensor on the device meta; with "
                          "one_copy_per_machine it has no values: use averaged_gradients(), "
                          "clip_grad_norm_ or a GradScaler of Lockstep"));
}

bool ModelCopy::holds_gradient(std::size_t index) const {
  const Held& held = held_[index];
  return held.gradient.defined() && parameters_[index].grad().is_same(placeholders_[index]) &&
         placeholders_[index]._version() == held.version;
}

void ModelCopy::hold_gradient(std::size_t index, const at::Tensor& gradient, double weight) {
  at::Tensor& seen = parameters_[index].mutable_grad();
  if (!gradient.defined()) {
    held_[index] = {.weight = weight};
    seen.reset();
    return;
  }
  held_[index] = {
      .gradient = gradient, .version = placeholders_[index]._version(), .weight = weight};
  seen = placeholders_[index];
}

void ModelCopy::give_up_gradients() {
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    if (!is_broken_) held_[index] = {};
    at::Tensor& seen = parameters_[index].mutable_grad();
    if (seen.defined() && seen.is_meta()) seen.reset();
  }
}

void ModelCopy::check_gradients_are_held(const char* call,
                                         const std::vector<std::size_t>& indices) const {
  for (const std::size_t index : indices) {
    const at::Tensor& gradient = parameters_[index].grad();
    if (has_sum(index)) check_sum(call, index);
    if (has_sum(index) || !gradient.defined()) continue;
    if (gradient.is_meta()) {
      check_placeholder(call, index);
      continue;
    }
    throw UsageError(concat(call, name_, " on rank ", group_.rank(), ": the gradient of '",
                            names_[index],
                            "' is this rank's alone; run the last backward before it outside of "
                            "no_sync(), and leave .grad to the library"));
  }
}

void ModelCopy::gather_places(const std::vector<std::size_t>& indices) {
  average_over_machines(indices, 0);
  hand_over(indices, 0);
  is_broken_ = true;
  meet("step of ");
  is_broken_ = false;
  check_same_call();
  find_sources(indices);
}

// Negative: an average, or a sum that all ranks have. 0: there is none.
std::int64_t ModelCopy::place_of_gradient(std::size_t index) {
  if (has_sum(index)) {
    find_sum(index);
    return held_[index].gradient.defined() ? -kOfNoElements : 0;
  }
  if (!holds_gradient(index)) return 0;
  const at::Tensor& gradient = held_[index].gradient;
  const std::int64_t offset =
      gradient.numel() == 0
          ? kOfNoElements
          : static_cast<std::int64_t>(memory_->gradients().offset_of(gradient).value());
  return held_[index].is_averaged ? -offset : offset;
}

// After place_of_gradient() of each.
std::vector<std::int64_t> ModelCopy::header_words(const std::vector<std::size_t>& indices,
                                                  std::uint64_t digest) const {
  std::vector<double> weights;
  std::uint64_t made = 0;
  for (const std::size_t index : indices) {
    weights.push_back(held_[index].weight);
    made = hash_of(&held_[index].made, sizeof made, made);
  }
  digest = hash_of(name_.data(), name_.size(), digest);
  digest = hash_of(weights.data(), weights.size() * sizeof(double), digest);
  digest = hash_of(indices.data(), indices.size() * sizeof(std::size_t), digest);
  return {changes_.empty() ? 0 : 1, static_cast<std::int64_t>(digest),
          static_cast<std::int64_t>(made)};
}

void ModelCopy::hand_over(const std::vector<std::size_t>& indices, std::uint64_t digest) {
  if (is_broken_) {
    meet("step of ");
    throw_broken();
  }
  ++step_;
  const auto record = log_->own_record(step_).begin();
  auto place = record + kHeaderWords;
  for (const std::size_t index : indices) *place++ = place_of_gradient(index);
  std::ranges::copy(header_words(indices, digest), record);
  for (const std::uint64_t change : changes_) *place++ = static_cast<std::int64_t>(change);
  log_->hand_over(step_);
}

// Over several machines what they have compared before.
std::span<const std::int64_t> ModelCopy::words_of(int rank) const {
  if (is_on_one_machine()) return log_->record(rank, step_);
  return words_[static_cast<std::size_t>(rank)];
}

// " on ranks 2, 3" than on rank 0; empty: none.
std::string ModelCopy::ranks_of_other(std::size_t word) const {
  std::string others;
  for (int rank = 1; rank < group_.world_size(); ++rank) {
    if (words_of(rank)[word] == words_of(0)[word]) continue;
    others += concat(others.empty() ? "" : ", ", rank);
  }
  if (others.empty()) return others;
  return concat(others.find(',') == std::string::npos ? " on rank " : " on ranks ", others);
}

// Else a rank would take one parameter's gradient for another's, or parts of a parameter would be
// updated in different ways.
void ModelCopy::check_same_call() const {
  const std::string others = ranks_of_other(kCallWord);
  if (others.empty()) return;
  throw UsageError(
      concat("step of ", name_, ": model, parameters, options, steps or weights of backward passes",
             others,
             " are other than on rank 0; with one_copy_per_machine every rank must "
             "step the same models in the same order, with the same options and state"));
}

// Each rank does it to its part of the averages, or to its copy of a sum.
void ModelCopy::check_same_changes_of_averages() {
  const std::string others = ranks_of_other(kMadeWord);
  if (others.empty()) return;
  forget_sources();
  throw UsageError(concat("step of ", name_, ": gradients were clipped or unscaled by other values",
                          others,
                          " than on rank 0; with one_copy_per_machine each rank updates a part of "
                          "every parameter, so make the same calls with the same values and number "
                          "of threads on every rank"));
}

void ModelCopy::check_averaged_everywhere(std::size_t index, int averaged, int ranks) {
  if (averaged == 0 || averaged == ranks) return;
  forget_sources();
  throw UsageError(concat("step of ", name_, ": the gradient of '", names_[index],
                          "' was given up on some ranks after it was clipped, unscaled or "
                          "summed over logical shards; call zero_grad() on every rank or on "
                          "none"));
}

void ModelCopy::find_sources(const std::vector<std::size_t>& indices) {
  const auto ranks = static_cast<std::size_t>(local_.world_size());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::size_t index = indices[i];
    auto& sources = sources_[index];
    sources.assign(ranks, nullptr);
    std::size_t held = 0;
    int averaged = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::int64_t word = log_->record(static_cast<int>(rank), step_)[i + kHeaderWords];
      if (word == 0) continue;
      ++held;
      if (word < 0) ++averaged;
      const std::int64_t offset = std::abs(word);
      if (offset == kOfNoElements) continue;
      sources[rank] = memory_->gradients().address_of(static_cast<std::uint64_t>(offset));
    }
    if (held == 0) sources.clear();
    check_averaged_everywhere(index, averaged, local_.world_size());
  }
  check_same_changes_of_averages();
}

void ModelCopy::forget_sources() {
  for (auto& sources : sources_) sources.clear();
  for (Held& held : held_) {
    if (held.is_sum) held.gradient.reset();
  }
}

std::byte* ModelCopy::state_at(std::size_t index, std::size_t k, std::int64_t element) const {
  const auto bytes = static_cast<std::int64_t>(states_[index][k].element_size());
  return shared(layout_.state(index, k)) + element * bytes;
}

void ModelCopy::prepare_state(std::size_t index, std::size_t k, const at::Tensor& kept,
                              at::ScalarType dtype) const {
  if (is_adopted(index, k, kept)) return;
  const auto* const data =
      kept.defined() ? static_cast<const std::byte*>(kept.const_data_ptr()) : nullptr;
  const std::byte* const first = memory_->own().data();
  if (data >= first && data < first + memory_->own().bytes() && kept.numel() > 0) {
    throw UsageError(concat("step of ", name_, " on rank ", group_.rank(), ": the state of '",
                            names_[index],
                            "' was taken over by another optimizer; with one_copy_per_machine a "
                            "parameter has one optimizer at a time"));
  }
  populate_state(index, k, dtype, local_.rank());
}

at::Tensor ModelCopy::adopt_state(std::size_t index, std::size_t k, const at::Tensor& kept,
                                  at::ScalarType dtype, double initial) {
  at::Tensor& current = states_[index][k];
  if (is_adopted(index, k, kept)) {
    current = kept;
    memory_->states()[index][k].emplace(current.getIntrusivePtr());
    return current;
  }
  prepare_state(index, k, kept, dtype);
  current = tensor_over(layout_.state(index, k), views_[index], dtype);
  memory_->types()[index][k] = dtype;
  memory_->states()[index][k].emplace(current.getIntrusivePtr());
  adoptions_.push_back({.index = index, .k = k, .kept = kept, .initial = initial});
  write_state(adoptions_.back(), local_.rank());
  return current;
}

double ModelCopy::digest_of_new_state(std::size_t index, std::size_t k,
                                      const at::Tensor& kept) const {
  constexpr int kBitsBeyondDouble = 12;
  // One that does not fit is refused.
  if (!kept.defined() || kept.sizes() != views_[index].sizes()) return 0;
  // Of a replaced optimizer: prepare_state() says so, on the ranks that have seen the other.
  if (is_adopted(index, k, kept) || lies_in_place(index, k, kept)) return 0;
  const at::Tensor dense = kept.contiguous();
  return static_cast<double>(hash_of(dense.const_data_ptr(), dense.nbytes(), 1) >>
                             kBitsBeyondDouble);
}

bool ModelCopy::is_adopted(std::size_t index, std::size_t k, const at::Tensor& kept) const {
  const at::Tensor& current = states_[index][k];
  if (current.defined()) return kept.is_same(current);
  return lies_in_place(index, k, kept) && !is_replaced(index, k, kept);
}

// In memory of an earlier generation: another optimizer has the state now, or had it last. While
// the memory refers to its tensor, however weakly, no other tensor has the same address.
bool ModelCopy::is_replaced(std::size_t index, std::size_t k, const at::Tensor& kept) const {
  const auto& last = memory_->states()[index][k];
  return last && last->_unsafe_get_target() != kept.unsafeGetTensorImpl();
}

bool ModelCopy::lies_in_place(std::size_t index, std::size_t k, const at::Tensor& kept) const {
  return kept.defined() && kept.numel() > 0 && kept.scalar_type() == memory_->types()[index][k] &&
         kept.const_data_ptr() == own(layout_.state(index, k)) &&
         kept.sizes() == views_[index].sizes() && kept.strides() == views_[index].strides();
}

void ModelCopy::populate_state(std::size_t index, std::size_t k, at::ScalarType dtype,
                               int of_share) const {
  const Part written = layout_.part(index, of_share);
  const auto bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  memory_->shared().populate(
      layout_.state(index, k) + static_cast<std::uint64_t>(written.begin * bytes),
      static_cast<std::uint64_t>(written.size() * bytes));
}

void ModelCopy::write_state(const Adoption& state, int of_share) const {
  const Part written = layout_.part(state.index, of_share);
  if (written.size() == 0) return;
  const at::ScalarType dtype = states_[state.index][state.k].scalar_type();
  std::byte* const target = state_at(state.index, state.k, written.begin);
  const Piece overwritten =
      piece(target, static_cast<std::uint64_t>(written.size()) * c10::elementSize(dtype));
  memory_->before_write(overwritten.offset, overwritten.bytes);
  if (state.kept.defined()) {
    const auto bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
    std::memcpy(target,
                static_cast<const std::byte*>(state.kept.const_data_ptr()) + written.begin * bytes,
                static_cast<std::uint64_t>(written.size() * bytes));
  } else {
    at::from_blob(target, {written.size()}, at::TensorOptions(dtype)).fill_(state.initial);
  }
}

}  // namespace lockstep::inline internal
