#include "lockstep/fully_shard/internal/sharded_units.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/fully_shard/internal/full_state.h"
#include "lockstep/fully_shard/internal/unit_plan.h"

namespace lockstep::inline internal {
namespace {

bool in_backward_pass() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

}  // namespace

void ShardedUnits::add(Unit unit) {
  units_.push_back(std::move(unit));
  find_readers();
}

void ShardedUnits::find_readers() {
  const auto reads = [](const auto& flat) { return flat->reads_other_chunks(); };
  has_readers_ = std::ranges::any_of(
      units_, [&](const Unit& unit) { return std::ranges::any_of(unit.flats, reads); });
}

void ShardedUnits::attach_hooks() {
  std::vector<at::Tensor> parameters;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    for (const auto& flat : units_[unit].flats) {
      if (!flat->is_trained()) continue;
      for (const FlatParameter::Member& member : flat->members()) {
        parameters.push_back(member.parameter);
        trained_.push_back(member.name);
        unit_of_hook_.push_back(unit);
      }
    }
  }
  hooks_ = std::make_unique<GradientHooks>(parameters, *this);
}

void ShardedUnits::begin_forward() {
  if (in_backward_ && !in_backward_pass()) {
    throw UsageError(concat("fully_shard on rank ", options_.group.rank(),
                            ": the backward pass before this forward did not end; after an error "
                            "in backward() call fully_shard again"));
  }
  if (forwards_++ > 0) return;
  forward_order_.begin_pass();
  has_gathered_ = false;
  keeps_parts_ = c10::GradMode::is_enabled();
  // What is still gathered may be older than the last step of the optimizer.
  reshard_all();
  const std::int64_t before = std::exchange(version_, version());
  if (before == version_) return;
  // Autograd refuses the backward pass of an older forward, whose values are gone.
  for (const Unit& unit : units_) {
    for (const auto& flat : unit.flats) flat->mark_changed();
  }
}

void ShardedUnits::leave_forward() {
  if (forwards_ > 1) return;
  if (has_gathered_) wait_for_readers();
  if (!options_.reshard_after_forward) return;
  for (Unit& unit : units_) {
    if (!unit.name.empty()) keep_part(unit);
  }
}

void ShardedUnits::end_forward(bool has_failed) noexcept {
  if (--forwards_ > 0) return;
  last_used_ = kNone;
  drop_arriving();
  if (has_failed || !c10::GradMode::is_enabled()) return reshard_all();
  if (!options_.reshard_after_forward) return;
  // The root is the first that backward needs.
  for (Unit& unit : units_) {
    if (!unit.name.empty()) reshard(unit);
  }
}

void ShardedUnits::drop_gradients() {
  for (const Unit& unit : units_) {
    for (const auto& flat : unit.flats) flat->drop_gradients();
  }
  forget_passes();
}

void ShardedUnits::begin_weighted_pass(double weight) {
  note_pass(Passes::kWeighted);
  begins_weighted_ = true;
  weight_ += weight;
  if (!sync_ || is_alone()) return;
  // In the order of ranks, those of a replica first: the same bits everywhere.
  double total = weight_;
  int ranks = 1;
  for (const ProcessGroup& group : {options_.group, options_.replicas}) {
    if (!group) continue;
    const at::Tensor own = at::full({1}, total, at::kDouble);
    total = 0;
    for (const at::Tensor& one : gather_from_all(group, own)) total += one.item<double>();
    ranks *= group.world_size();
  }
  scale_ = total > 0 ? ranks / total : 0;
}

void ShardedUnits::note_pass(Passes kind) {
  if (passes_ == Passes::kNone) passes_ = kind;
  if (passes_ == kind) return;
  throw UsageError(concat("fully_shard on rank ", options_.group.rank(),
                          ": some of the backward passes between two exchanges have a weight, and "
                          "others have none; call model.backward(loss, {.weight = n}) for all"));
}

void ShardedUnits::forget_passes() {
  passes_ = Passes::kNone;
  begins_weighted_ = false;
  weight_ = 0;
  scale_ = 1;
}

std::size_t ShardedUnits::unit_of(const at::Tensor& argument) const {
  const auto holds = [&](const Unit& unit) {
    return std::ranges::any_of(unit.flats, [&](const auto& flat) { return flat->holds(argument); });
  };
  // Most operators use the unit that the one before them used.
  if (last_used_ != kNone && holds(units_[last_used_])) return last_used_;
  const auto unit = std::ranges::find_if(units_, holds);
  LOCKSTEP_ASSERT(unit != units_.end());
  return static_cast<std::size_t>(unit - units_.begin());
}

void ShardedUnits::refuse_use(const at::Tensor& argument, const char* operation,
                              const char* what) const {
  std::string name;
  for (const auto& flat : units_[unit_of(argument)].flats) {
    if (flat->holds(argument)) name = flat->name_of(argument);
  }
  throw UsageError(concat("fully_shard on rank ", options_.group.rank(), ": ", operation,
                          " needs parameter '", name, what));
}

void ShardedUnits::before_use(const std::vector<at::Tensor>& arguments, const at::Tensor* written,
                              const char* operation) {
  const bool in_backward = in_backward_pass();
  if (!in_backward && forwards_ == 0) {
    refuse_use(arguments.front(), operation,
               "', which is sharded outside of forward and backward; give optimizers "
               "parameters() of the FullySharded, and read values with full_state_dict()");
  }
  if (written != nullptr) {
    refuse_use(
        *written, operation,
        "' to write to it, and forward has a copy that is given up; change this rank's pieces, "
        "which parameters() has, or call load_full_state_dict()");
  }
  if (in_backward) begin_backward();
  if (arriving_ != kNone) advance_arriving();
  std::vector<std::size_t> units;
  for (const at::Tensor& argument : arguments) {
    const std::size_t unit = unit_of(argument);
    if (std::ranges::find(units, unit) == units.end()) units.push_back(unit);
  }
  if (units.size() > 1 || units.front() != last_used_) use(units, in_backward);
}

void ShardedUnits::begin_backward() {
  if (in_backward_) return;
  check_unchanged();
  note_pass(std::exchange(begins_weighted_, false) ? Passes::kWeighted : Passes::kPlain);
  in_backward_ = true;
  backward_order_.begin_pass();
  last_used_ = kNone;
  for (Unit& unit : units_) unit.is_used_in_backward = false;
  tell_end_of_backward(*this);
}

void ShardedUnits::check_unchanged() const {
  if (version() == version_) return;
  throw UsageError(concat("fully_shard on rank ", options_.group.rank(),
                          ": parameters were changed between forward and backward; call backward() "
                          "before optimizer.step(), or forward again"));
}

std::int64_t ShardedUnits::version() const {
  std::int64_t sum = 0;
  for (const Unit& unit : units_) {
    for (const auto& flat : unit.flats) sum += flat->version();
  }
  return sum;
}

void ShardedUnits::use(const std::vector<std::size_t>& units, bool in_backward) {
  for (Unit& other : units_) {
    const bool is_kept = std::ranges::any_of(units, [&](std::size_t unit) {
      const std::string& name = units_[unit].name;
      return is_within(other.name, name) || is_within(name, other.name);
    });
    if (!other.is_gathered || is_kept) continue;
    // Backward comes to it yet.
    if (in_backward && !other.is_used_in_backward) continue;
    // Its gradients are complete: their flat copy may take the memory of the parameters.
    if (!in_backward) keep_part(other);
    if (in_backward || options_.reshard_after_forward) reshard(other);
    if (in_backward && sync_) reduce(other);
  }
  for (const std::size_t unit : units) {
    if (in_backward) {
      use_in_backward(unit);
    } else {
      gather(unit, /*in_backward=*/false);
      units_[unit].is_used_in_forward = true;
    }
  }
  last_used_ = units.size() == 1 ? units.front() : kNone;
}

// Other ranks may have used an outer unit behind this one in forward, so that their backward comes
// to it first. Units are in the order of modules, outer units before the units in them.
void ShardedUnits::use_in_backward(std::size_t index) {
  for (std::size_t outer = 0; outer <= index; ++outer) {
    Unit& unit = units_[outer];
    const bool is_around = unit.is_used_in_forward && is_within(units_[index].name, unit.name);
    if (!is_around && outer != index) continue;
    gather(outer, /*in_backward=*/true);
    unit.is_used_in_backward = true;
  }
}

void ShardedUnits::gather(std::size_t index, bool in_backward) {
  Unit& unit = units_[index];
  if (unit.is_gathered) return;
  if (is_alone()) {
    for (const auto& flat : unit.flats) flat->gather_alone(alone_(*flat));
    unit.is_gathered = true;
    return;
  }
  if (arriving_ != index) {
    drop_arriving();
    begin_gather(index);
  }
  for (const auto& flat : unit.flats) flat->end_gather();
  arriving_ = kNone;
  unit.is_gathered = true;
  has_gathered_ = true;
  const auto next = (in_backward ? backward_order_ : forward_order_).next_after(index);
  if (!next || units_[*next].is_gathered) return;
  if (gathers_in_background(units_[*next])) begin_gather(*next);
}

bool ShardedUnits::gathers_in_background(const Unit& unit) {
  return std::ranges::all_of(unit.flats,
                             [](const auto& flat) { return flat->gathers_in_background(); });
}

void ShardedUnits::begin_gather(std::size_t index) {
  arriving_ = index;
  for (const auto& flat : units_[index].flats) flat->begin_gather();
}

// Over several machines no thread moves what arrives on from one step to the next.
void ShardedUnits::advance_arriving() const {
  for (const auto& flat : units_[arriving_].flats) flat->advance_gather();
}

void ShardedUnits::drop_arriving() noexcept {
  if (arriving_ == kNone) return;
  for (const auto& flat : units_[std::exchange(arriving_, kNone)].flats) flat->drop_gather();
}

// A rank that goes on may change its pieces, which others have before them while they compute.
void ShardedUnits::wait_for_readers() const {
  if (has_readers_) options_.group.barrier({.name = "parameters read"});
}

void ShardedUnits::reduce(Unit& unit) {
  if (is_alone()) return;
  for (const auto& flat : unit.flats) {
    if (flat->is_trained()) flat->reduce_gradients(scale_);
  }
}

void ShardedUnits::keep_part(Unit& unit) const {
  if (!unit.is_gathered || !keeps_parts_) return;
  for (const auto& flat : unit.flats) flat->keep_part();
}

void ShardedUnits::reshard(Unit& unit) noexcept {
  if (!unit.is_gathered) return;
  unit.is_gathered = false;
  for (const auto& flat : unit.flats) flat->reshard();
}

void ShardedUnits::reshard_all() noexcept {
  last_used_ = kNone;
  drop_arriving();
  for (Unit& unit : units_) {
    reshard(unit);
    for (const auto& flat : unit.flats) flat->drop_part();
  }
}

void ShardedUnits::drop_pass() noexcept {
  for (Unit& unit : units_) {
    unit.is_gathered = false;
    for (const auto& flat : unit.flats) flat->drop_pass();
  }
  arriving_ = last_used_ = kNone;
  has_gathered_ = false;
  in_backward_ = false;
  forget_passes();
}

void ShardedUnits::compute_alone(ValuesOf values) {
  if (is_alone() == static_cast<bool>(values)) return;
  drop_pass();
  alone_ = std::move(values);
}

at::Tensor ShardedUnits::whole(const FlatParameter& flat) const {
  return is_alone() ? alone_(flat) : flat.gather_pieces(pieces_of(flat));
}

void ShardedUnits::regroup(const ProcessGroup& group, const ValuesOf& values) {
  drop_pass();
  alone_ = {};
  options_.group = group;
  for (const Unit& unit : units_) {
    for (const auto& flat : unit.flats) flat->use_group(group);
  }
  for (const Unit& unit : units_) {
    for (const auto& flat : unit.flats) flat->reshard_over(values(*flat));
  }
  find_readers();
  // Others may have made other passes.
  for (Unit& unit : units_) unit.is_used_in_forward = false;
  forward_order_ = {};
  backward_order_ = {};
}

void ShardedUnits::gradient_ready(std::size_t index, const at::Tensor& arrived) {
  const auto refuse = [&](const char* what) {
    throw UsageError(concat("fully_shard on rank ", options_.group.rank(), ": the gradient of '",
                            trained_[index], "' ", what));
  };
  if (c10::GradMode::is_enabled()) {
    refuse("is to be differentiated again (create_graph), which is not supported");
  }
  if (arrived.defined() && arrived.is_sparse()) {
    refuse("is sparse, which is not supported; use layers with sparse = false");
  }
  begin_backward();
  // Other ranks may need the unit's values where this one does not.
  const std::size_t unit = unit_of_hook_[index];
  const PauseWatching pause;
  if (unit != last_used_) use({unit}, /*in_backward=*/true);
}

void ShardedUnits::backward_ended() {
  const PauseWatching pause;
  if (is_alone()) return drop_pass();
  if (!sync_ || !exchange_what_is_left()) wait_for_readers();
  if (sync_) {
    forget_passes();
    if (options_.gradient_norm) measure_gradients();
  }
  reshard_all();
  in_backward_ = false;
}

// Of each trained parameter one byte travels: the largest over all ranks says whether any rank has
// a gradient, and whether any has one that is still to be reduced. False: there are none, and no
// rank has waited for another.
bool ShardedUnits::exchange_what_is_left() {
  std::vector<FlatParameter*> flats;
  std::vector<std::uint8_t> states;
  for (const Unit& unit : units_) {
    for (const auto& flat : unit.flats) {
      if (!flat->is_trained()) continue;
      flats.push_back(flat.get());
      for (const std::uint8_t state : flat->gradient_states()) states.push_back(state);
    }
  }
  if (states.empty()) return false;
  const auto count = static_cast<std::int64_t>(states.size());
  const at::Tensor on_device =
      at::from_blob(states.data(), {count}, at::kByte).to(options_.group.device(), false, true);
  for (const ProcessGroup& group : {options_.group, options_.replicas}) {
    if (group) group.all_reduce(on_device, {.op = ReduceOp::kMax, .name = "gradients present"});
  }
  const at::Tensor agreed = on_device.cpu();
  const auto* has_gradient = static_cast<const std::uint8_t*>(agreed.const_data_ptr());
  for (FlatParameter* const flat : flats) {
    const auto* const end = has_gradient + flat->members().size();
    if (std::find(has_gradient, end, FlatParameter::kLeft) != end) flat->reduce_gradients(scale_);
    flat->set_gradients(has_gradient);
    has_gradient = end;
  }
  return true;
}

// Replicas have the same gradients: each element counts once. All use the norm of one of them, as
// processors may round sums otherwise.
void ShardedUnits::measure_gradients() {
  double squares = 0;
  for (const Unit& unit : units_) {
    for (const auto& flat : unit.flats) squares += flat->sum_of_squares();
  }
  const at::Tensor total =
      at::full({1}, squares, at::TensorOptions(at::kDouble).device(options_.group.device()));
  options_.group.all_reduce(total, {.name = "gradient norm"});
  if (options_.replicas) options_.replicas.broadcast(total, 0, {.name = "gradient norm"});
  gradient_norm_ = std::sqrt(total.item<double>());
}

}  // namespace lockstep::inline internal
