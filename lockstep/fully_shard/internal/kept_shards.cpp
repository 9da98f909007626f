#include "lockstep/fully_shard/internal/kept_shards.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/fully_shard/internal/optimizer_pieces.h"
#include "lockstep/fully_shard/internal/sharded_units.h"
#include "lockstep/one_copy/internal/pass_files.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/save.h"

namespace lockstep::inline internal {
namespace {

constexpr const char* kPurpose = "shards kept";

// Of each flat tensor a slot has room for the parameters and so many tensors of an optimizer, of up
// to 8 bytes per element. What is not written takes no memory.
constexpr std::size_t kMostFields = 4;
constexpr std::uint64_t kMostElementBytes = 8;
constexpr std::uint64_t kPageBytes = 4096;
constexpr std::size_t kParameters = 0;  // the first field

std::uint64_t bytes_of_field(const FlatParameter& flat) {
  const auto bytes = static_cast<std::uint64_t>(flat.elements()) * kMostElementBytes;
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// The tensors that an optimizer keeps, by name: ranks have the same.
std::map<std::string, std::size_t> fields_of(const c10::IValue& optimizer,
                                             const std::set<std::string>& numbers) {
  std::map<std::string, std::size_t> fields;
  for (const auto& item : find_value(optimizer, kOptimizerStates).toGenericDict()) {
    for (const auto& field : item.value().toGenericDict()) {
      if (!field.value().isTensor() || numbers.contains(field.key().toStringRef())) continue;
      fields.emplace(field.key().toStringRef(), 0);
    }
  }
  LOCKSTEP_ASSERT(fields.size() <= kMostFields);
  std::size_t number = kParameters;
  for (auto& [name, field] : fields) field = ++number;
  return fields;
}

}  // namespace

KeptShards::KeptShards(ShardedUnits& units, torch::optim::Optimizer& optimizer)
    : units_(units), optimizer_(optimizer), members_(units), numbers_(numbers_of(optimizer)) {
  offsets_.push_back(0);
  for (const ShardedUnits::Unit& unit : units.units()) {
    for (const auto& flat : unit.flats) {
      flats_.push_back(flat.get());
      offsets_.push_back(offsets_.back() + (1 + kMostFields) * bytes_of_field(*flat));
    }
  }
}

void KeptShards::begin(const ProcessGroup& group) {
  slots_.reset();
  populated_.clear();
  rests_.clear();
  version_ = remembered_ = 0;
  run_on_all(group, kPurpose, [&] {
    if (group.rank() != 0) return;
    slots_ = std::make_shared<ShardSlots>(
        ShardSlots::make_file("lockstep shards kept", offsets_.back()), offsets_.back());
  });
  share(group);
  group_ = group;
  keep();
}

// From the first rank that has memory with the version to all that have not.
void KeptShards::share(const ProcessGroup& group) {
  const auto domain = static_cast<std::int64_t>(std::hash<std::string>()(memory_domain()));
  const bool has_version = slots_ && (version_ == 0 || slots_->find(version_));
  const std::int64_t own_id = has_version ? static_cast<std::int64_t>(slots_->id()) : -1;
  const auto rows = gather_rows(group, {own_id, domain});
  const auto source = std::ranges::find_if(rows, [](const auto& row) { return row[0] >= 0; });
  const auto is_elsewhere = [&](const auto& row) { return row[1] != rows.front()[1]; };
  if (source == rows.end() || std::ranges::any_of(rows, is_elsewhere)) {
    throw Error(concat("recovery on rank ", group.rank(), ": the shards of the lost ranks are ",
                       source == rows.end() ? "lost" : "on another machine",
                       "; the job restarts from the newest snapshot that the program loads"));
  }
  const std::int64_t id = source->front();
  const auto receivers = std::ranges::count_if(rows, [&](const auto& row) { return row[0] != id; });
  const FilePassing passing{.source = static_cast<int>(source - rows.begin()),
                            .receivers = static_cast<int>(receivers),
                            .is_receiver = own_id != id,
                            .files = 1,
                            .purpose = kPurpose};
  const int file = slots_ ? slots_->file() : -1;
  const bool is_source = group.rank() == passing.source;
  std::vector<UniqueFd> received =
      pass_files(group, passing, std::span(&file, is_source ? 1U : 0U));
  run_on_all(group, kPurpose, [&] {
    if (passing.is_receiver)
      slots_ = std::make_shared<ShardSlots>(std::move(received.front()), offsets_.back());
  });
}

void KeptShards::keep() {
  write(version_ + 1);
  group_.barrier({.name = kPurpose});
  ++version_;
}

bool KeptShards::settle() {
  const bool is_complete = slots_->find(version_ + 1).has_value();
  if (is_complete) ++version_;
  return is_complete;
}

bool KeptShards::go_back() {
  version_ = remembered_;
  return slots_ && slots_->find(version_);
}

void KeptShards::write(std::int64_t version) {
  const c10::NoGradGuard no_grad;
  written_slot_ = slots_->free_slot(version_, remembered_);
  slots_->unmark(written_slot_, group_.rank());
  failpoint("shards.begin");
  note_versions();
  for (std::size_t flat = 0; flat < flats_.size(); ++flat) {
    for (std::size_t i = 0; i < flats_[flat]->members().size(); ++i) {
      copy(flat, kParameters, i, flats_[flat]->members()[i].piece);
    }
  }
  std::erase_if(rests_, [&](const auto& rest) {
    return rest.first != version_ && rest.first != remembered_;
  });
  rests_.emplace_back(version, write_optimizer(optimizer_state_dict(optimizer_)));
  failpoint("shards.copied");
  slots_->mark(written_slot_, version, group_.rank(), group_.world_size());
  failpoint("shards.marked");
}

void KeptShards::note_versions() {
  written_versions_.clear();
  for (const FlatParameter* const flat : flats_) {
    for (const FlatParameter::Member& member : flat->members())
      written_versions_.push_back(member.piece._version());
  }
}

bool KeptShards::is_outdated() const {
  auto written = written_versions_.begin();
  for (const FlatParameter* const flat : flats_) {
    for (const FlatParameter::Member& member : flat->members()) {
      if (written == written_versions_.end() || member.piece._version() != *written++) return true;
    }
  }
  return false;
}

c10::IValue KeptShards::write_optimizer(const c10::IValue& optimizer) {
  const auto fields = fields_of(optimizer, numbers_);
  const auto places = places_of_optimizer();
  std::map<at::ScalarType, at::Tensor> nothing;
  const auto write = [&](std::int64_t index, const std::string& field, const at::Tensor& tensor) {
    const auto* const place = places.at(static_cast<std::size_t>(index));
    if (place == nullptr || numbers_.contains(field)) return tensor.clone();
    copy(number_of(place->flat), fields.at(field), place->index, tensor);
    at::Tensor& stands_for_it = nothing[tensor.scalar_type()];
    if (!stands_for_it.defined()) stands_for_it = at::empty({0}, tensor.options());
    return stands_for_it;
  };
  return find_value(map_states(optimizer, write), kOptimizerStates);
}

void KeptShards::copy(std::size_t flat, std::size_t field, std::size_t member,
                      const at::Tensor& piece) {
  const FlatParameter& of = *flats_[flat];
  const auto bytes = static_cast<std::uint64_t>(piece.element_size());
  const std::uint64_t offset = offset_of(flat, field);
  if (populated_.emplace(written_slot_, flat, field).second) {
    const ElementRange chunk = of.own_elements();
    slots_->populate(written_slot_, offset + static_cast<std::uint64_t>(chunk.begin) * bytes,
                     static_cast<std::uint64_t>(chunk.size()) * bytes);
  }
  const ElementRange place = of.own_elements(member);
  LOCKSTEP_ASSERT(piece.numel() == place.size() && piece.is_contiguous() && piece.is_cpu());
  std::memcpy(
      slots_->data(written_slot_) + offset + static_cast<std::uint64_t>(place.begin) * bytes,
      piece.const_data_ptr(), piece.nbytes());
}

c10::IValue KeptShards::rest() const {
  const auto rest = std::ranges::find(rests_, version_, &decltype(rests_)::value_type::first);
  LOCKSTEP_ASSERT(rest != rests_.end());
  c10::impl::GenericDict dict = make_dict();
  dict.insert_or_assign(kOptimizerStates, rest->second);
  // The learning rates of now: schedulers step after the copy.
  dict.insert_or_assign(kOptimizerGroups,
                        find_value(optimizer_state_dict(optimizer_), kOptimizerGroups));
  return dict;
}

void KeptShards::take(std::int64_t version, const c10::IValue& rest) {
  version_ = remembered_ = version;
  rests_ = {{version, find_value(rest, kOptimizerStates)}};
  // Hyperparameters at once: this rank may be the next to give them to others.
  c10::impl::GenericDict groups = make_dict();
  groups.insert_or_assign(kOptimizerStates, make_dict());
  groups.insert_or_assign(kOptimizerGroups, find_value(rest, kOptimizerGroups));
  adopt_optimizer_state_dict(optimizer_, groups, "the state of another rank");
}

void KeptShards::regroup(const ProcessGroup& group, bool is_final) {
  share(group);
  group_ = group;
  populated_.clear();
  units_.regroup(group, [&](const FlatParameter& flat) { return values(flat); });
  read_optimizer();
  note_versions();
  if (!is_final) return;
  // Those of a step that is void: it comes again, perhaps on other ranks.
  if (group.rank() == 0) slots_->forget_after(version_);
  group.barrier({.name = kPurpose});
}

void KeptShards::read_optimizer() {
  const c10::IValue dict = rest();
  const int slot = slots_->find(version_).value();
  const auto fields = fields_of(dict, numbers_);
  const auto places = places_of_optimizer();
  const auto read = [&](std::int64_t index, const std::string& field, const at::Tensor& tensor) {
    const auto* const place = places.at(static_cast<std::size_t>(index));
    if (place == nullptr || numbers_.contains(field)) return tensor.clone();
    const ElementRange own = place->flat->own_elements(place->index);
    return kept_tensor(slot, number_of(place->flat), fields.at(field), tensor.scalar_type())
        .narrow(0, own.begin, own.size())
        .clone();
  };
  adopt_optimizer_state_dict(optimizer_, map_states(dict, read), "the copies of shards");
}

at::Tensor KeptShards::values(const FlatParameter& flat) const {
  return kept_tensor(slots_->find(version_).value(), number_of(&flat), kParameters,
                     flat.members().front().piece.scalar_type());
}

at::Tensor KeptShards::kept_tensor(int slot, std::size_t flat, std::size_t field,
                                   at::ScalarType dtype) const {
  return at::from_blob(
      slots_->data(slot) + offset_of(flat, field), {flats_[flat]->elements()},
      [kept = slots_](void*) {}, at::TensorOptions(dtype));
}

std::uint64_t KeptShards::offset_of(std::size_t flat, std::size_t field) const {
  return offsets_[flat] + field * bytes_of_field(*flats_[flat]);
}

std::size_t KeptShards::number_of(const FlatParameter* flat) const {
  return static_cast<std::size_t>(std::ranges::find(flats_, flat) - flats_.begin());
}

std::vector<const ShardedMembers::Place*> KeptShards::places_of_optimizer() const {
  std::vector<const ShardedMembers::Place*> places;
  for (const auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      places.push_back(members_.place_of_piece(parameter));
    }
  }
  return places;
}

}  // namespace lockstep::inline internal
