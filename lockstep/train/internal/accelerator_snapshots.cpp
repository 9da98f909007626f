// What an accelerator saves, and how it goes on from there.
#include <algorithm>
#include <string>
#include <utility>

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/recovery/internal/step_recovery.h"
#include "lockstep/recovery/internal/tensor_copies.h"
#include "lockstep/snapshot/internal/gathered_state.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/internal/tensor_difference.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "lockstep/snapshot/state_dict.h"
#include "lockstep/train/accelerator.h"
#include "lockstep/train/internal/accelerator_shards.h"
#include "lockstep/train/internal/accelerator_training.h"

namespace lockstep {
namespace {

c10::impl::GenericList list_of(const c10::IValue& value, const char* name,
                               const std::string& source, std::size_t expected) {
  const c10::IValue found = entry(value, name, source);
  if (!found.isList()) throw UsageError(concat(source, ": '", name, "' is no list"));
  c10::impl::GenericList list = found.toList();
  if (list.size() != expected) {
    throw UsageError(concat(source, ": it was saved with ", list.size(), " ", name, ", and ",
                            expected, " are prepared; prepare and register the same"));
  }
  return list;
}

// The first model and optimizer are the snapshot's own.
struct SavedLists {
  c10::impl::GenericList models;
  c10::impl::GenericList optimizers;
  c10::impl::GenericList schedulers;
  c10::impl::GenericList cursors;
};

SavedLists lists_of(const AcceleratorState& state, const c10::IValue& values,
                    const std::string& source) {
  const auto all_but_first = [](std::size_t count) { return count == 0 ? 0 : count - 1; };
  return {.models = list_of(values, "more_models", source, all_but_first(state.replicas.size())),
          .optimizers =
              list_of(values, "more_optimizers", source, all_but_first(state.optimizers.size())),
          .schedulers = list_of(values, "schedulers", source, state.schedulers.size()),
          .cursors = list_of(values, "data", source, state.loaders.size())};
}

c10::IValue cursor_value(LoaderPosition& loader) {
  const DataCursor cursor = loader.cursor_to_save();
  c10::impl::GenericDict dict = make_dict();
  dict.insert_or_assign("seed", static_cast<std::int64_t>(cursor.seed));
  dict.insert_or_assign("epoch", cursor.epoch);
  dict.insert_or_assign("consumed", cursor.consumed);
  dict.insert_or_assign("batches", cursor.batches);
  dict.insert_or_assign("dataset_size", loader.dataset_size());
  return dict;
}

DataCursor cursor_for(const LoaderPosition& loader, const c10::IValue& value,
                      const std::string& source) {
  const std::int64_t size = integer_entry(value, "dataset_size", source);
  if (size != loader.dataset_size()) {
    throw UsageError(concat(source, ": it was saved with a dataset of ", size,
                            " samples, this one has ", loader.dataset_size(),
                            "; give it the same dataset"));
  }
  const std::int64_t consumed = integer_entry(value, "consumed", source);
  // Earlier snapshots do not say: there it was what follows from the samples.
  const std::int64_t batches = find_value(value, "batches").isNone()
                                   ? consumed / loader.batch_size()
                                   : integer_entry(value, "batches", source);
  const DataCursor cursor{.seed = static_cast<std::uint64_t>(integer_entry(value, "seed", source)),
                          .epoch = integer_entry(value, "epoch", source),
                          .consumed = consumed,
                          .batches = batches};
  loader.check_cursor(cursor);
  return cursor;
}

// What was registered then and is not now would be lost.
void check_names(const c10::impl::GenericDict& saved,
                 const std::vector<AcceleratorState::Registered>& registered,
                 const std::string& source) {
  for (const auto& one : registered) {
    if (one.is_optional || !find_value(saved, one.name).isNone()) continue;
    throw UsageError(concat(source, ": nothing was saved under '", one.name,
                            "'; register what was registered then, or begin in another folder"));
  }
  for (const auto& item : saved) {
    const std::string& name = item.key().toStringRef();
    const auto has_name = [&](const auto& one) { return one.name == name; };
    if (std::ranges::any_of(registered, has_name)) continue;
    throw UsageError(concat(source, ": it holds the state of '", name,
                            "', which is not registered now and would be lost; register it, in a "
                            "Trainer by adding its callback, or begin in another folder"));
  }
}

}  // namespace

SnapshotSaveOptions AcceleratorState::save_options(c10::IValue values) {
  return {
      .epoch = epoch(),
      .step = steps_,
      .values = std::move(values),
      .is_of_this_run = [this](const c10::IValue& there) { return is_of_this_training(there); }};
}

// Other survivors may write the same snapshot, or one beside it: nobody claims the folder.
bool AcceleratorState::save_and_leave() {
  if (!recovery_) return false;
  if (options_.strategy == Strategy::kFullyShard) {
    // Its shard alone is no state. Ranks that go on have a copy of it.
    if (!recovery_->is_removed()) return false;
    recovery_->leave();
    return true;
  }
  if (!recovery_->holds_state() || options_.directory.empty()) return false;
  if (recovery_->is_at_boundary()) training_->move_loader_to_boundary();
  // The ranks of the next generation, which has a newer state, do not wait for this one.
  if (!training_->take_out_of_copies()) return false;
  SnapshotDirectory snapshots(options_.directory, {.keep_last = options_.keep_last});
  snapshots.save(*replicas.front()->module(), *optimizers.front()->optimizer,
                 save_options(values()));
  recovery_->leave();
  return true;
}

c10::IValue AcceleratorState::values() {
  update_scaler();
  c10::impl::GenericList models = make_list();
  for (std::size_t i = 1; i < replicas.size(); ++i) {
    models.push_back(tensor_dict_value(lockstep::state_dict(*replicas[i]->module())));
  }
  c10::impl::GenericList others = make_list();
  for (std::size_t i = 1; i < optimizers.size(); ++i) {
    others.push_back(optimizer_state_dict(*optimizers[i]->optimizer));
  }
  c10::impl::GenericList steps = make_list();
  for (const auto& scheduled : schedulers) steps.push_back(scheduled->steps);
  c10::impl::GenericList cursors = make_list();
  for (const auto& loader : loaders) cursors.push_back(cursor_value(*loader));
  c10::impl::GenericDict named = make_dict();
  for (const Registered& one : registered) {
    named.insert_or_assign(one.name, tensor_dict_value(one.state_dict()));
  }
  c10::impl::GenericDict dict = make_dict();
  dict.insert_or_assign("more_models", models);
  dict.insert_or_assign("more_optimizers", others);
  dict.insert_or_assign("schedulers", steps);
  dict.insert_or_assign("data", cursors);
  dict.insert_or_assign("registered", named);
  dict.insert_or_assign("grad_scaler", tensor_dict_value(scaler_.state_dict()));
  dict.insert_or_assign("training_id", training_id_);
  dict.insert_or_assign("logical_shards", static_cast<std::int64_t>(options_.logical_shards));
  if (shards_) {
    dict.insert_or_assign("compute_threads", static_cast<std::int64_t>(options_.compute_threads));
    dict.insert_or_assign("kernels", shards_->kernels());
  }
  return dict;
}

bool AcceleratorState::is_of_this_training(const c10::IValue& values) const {
  if (!values.isGenericDict()) return false;
  const c10::IValue id = find_value(values, "training_id");
  return id.isString() && id.toStringRef() == training_id_;
}

void AcceleratorState::check_saved_shards(const c10::IValue& values,
                                          const std::string& source) const {
  const auto check_equal = [&](const char* name, std::int64_t own) {
    const c10::IValue saved = find_value(values, name);
    if (saved.isNone() || saved.toInt() == own) return;
    if (saved.toInt() == 0) {
      if (process_index() != 0) return;
      log(LogLevel::kWarning, concat(source, ": it was saved without ", name,
                                     "; the bits of its training depend on its number of ranks"));
      return;
    }
    throw UsageError(concat(source, ": it was saved with ", name, "=", saved.toInt(),
                            ", this training has ", own, ", and would have other bits; set ", name,
                            "=", saved.toInt()));
  };
  check_equal("logical_shards", options_.logical_shards);
  if (shards_) check_equal("compute_threads", options_.compute_threads);
}

void AcceleratorState::check_values(const c10::IValue& values, const std::string& source) const {
  check_saved_shards(values, source);
  const auto [models, others, steps, cursors] = lists_of(*this, values, source);
  const auto named = entry(values, "registered", source).toGenericDict();
  for (std::size_t i = 0; i < models.size(); ++i) {
    check_state_dict(*replicas[i + 1]->module(), tensor_dict(models.get(i), source), source);
  }
  for (std::size_t i = 0; i < others.size(); ++i) {
    check_optimizer_state_dict(*optimizers[i + 1]->optimizer, others.get(i), source);
  }
  for (std::size_t i = 0; i < schedulers.size(); ++i) {
    if (schedulers[i]->steps <= steps.get(i).toInt()) continue;
    throw UsageError(concat(source, ": the scheduler has made ", schedulers[i]->steps,
                            " steps, more than the ", steps.get(i).toInt(),
                            " that were saved; load before the training begins"));
  }
  for (std::size_t i = 0; i < loaders.size(); ++i) cursor_for(*loaders[i], cursors.get(i), source);
  check_names(named, registered, source);
  for (const Registered& one : registered) {
    const c10::IValue saved = find_value(named, one.name);
    if (one.check && !saved.isNone()) one.check(tensor_dict(saved, source));
  }
}

void AcceleratorState::take_registered(const c10::IValue& values, const std::string& source) {
  const c10::IValue named = entry(values, "registered", source);
  given_up_.clear();
  for (const Registered& one : registered) {
    const c10::IValue saved = find_value(named, one.name);
    if (saved.isNone()) continue;  // It is optional.
    given_up_[one.name] = copies_of(one.state_dict());
    one.load_state_dict(tensor_dict(saved, source));
  }
  // None where it was saved without. It is the last, and takes all or nothing.
  const TensorDict scaler = tensor_dict(entry(values, "grad_scaler", source), source);
  given_up_scaler_ = copies_of(scaler_.state_dict());
  if (!scaler.empty()) scaler_.load_state_dict(scaler);
}

void AcceleratorState::give_back_registered() {
  for (const Registered& one : registered) {
    const auto found = given_up_.find(one.name);
    if (found != given_up_.end()) one.load_state_dict(found->second);
  }
  given_up_.clear();
  if (!given_up_scaler_.empty()) scaler_.load_state_dict(std::exchange(given_up_scaler_, {}));
}

void AcceleratorState::take_values(const c10::IValue& values, const std::string& source) {
  const auto [models, others, steps, cursors] = lists_of(*this, values, source);
  for (std::size_t i = 0; i < models.size(); ++i) {
    load_state_dict(*replicas[i + 1]->module(), tensor_dict(models.get(i), source), source);
  }
  for (std::size_t i = 0; i < others.size(); ++i) {
    adopt_optimizer_state_dict(*optimizers[i + 1]->optimizer, others.get(i), source);
  }
  for (std::size_t i = 0; i < loaders.size(); ++i) {
    loaders[i]->set_cursor(cursor_for(*loaders[i], cursors.get(i), source));
  }
  const c10::IValue id = find_value(values, "training_id");
  if (id.isString()) training_id_ = id.toStringRef();
  const c10::IValue kernels = find_value(values, "kernels");
  if (shards_ && kernels.isString()) shards_->compare_kernels(kernels.toStringRef(), source);
  given_up_.clear();
  given_up_scaler_.clear();
  for (std::size_t i = 0; i < schedulers.size(); ++i) {
    go_to(*schedulers[i], steps.get(i).toInt());
  }
}

// Whatever it keeps beside them it has from its steps.
void AcceleratorState::go_to(PreparedSchedulerState& scheduled, std::int64_t steps) {
  std::vector<double> rates;
  for (const auto& stepped : optimizers) {
    for (auto& group : stepped->optimizer->param_groups()) {
      rates.push_back(group.options().get_lr());
    }
  }
  for (; scheduled.steps < steps; ++scheduled.steps) scheduled.scheduler->step();
  auto rate = rates.begin();
  for (const auto& stepped : optimizers) {
    for (auto& group : stepped->optimizer->param_groups()) group.options().set_lr(*rate++);
  }
}

void Accelerator::register_state(AcceleratorState::Registered registered) {
  for (const auto& other : state_->registered) {
    if (other.name == registered.name) {
      throw UsageError(concat("register_for_checkpointing: '", registered.name,
                              "' is registered already; choose another name"));
    }
  }
  state_->registered.push_back(std::move(registered));
}

void Accelerator::register_for_checkpointing(const std::string& name, TensorDict tensors) {
  if (const auto repeated = repeated_name(tensors)) {
    throw UsageError(concat("register_for_checkpointing: '", name, "' has two tensors named '",
                            *repeated, "'; give each its own name"));
  }
  register_state(
      {.name = name,
       .state_dict = [tensors] { return tensors; },
       .load_state_dict =
           [tensors](const TensorDict& values) {
             const at::NoGradGuard no_grad;
             for (const auto& [key, tensor] : tensors) {
               const at::Tensor target = tensor;
               target.copy_(std::ranges::find(values, key, &TensorDict::value_type::first)->second);
             }
           },
       .check =
           [tensors, name](const TensorDict& values) {
             const auto differences = tensor_differences(tensors, values);
             if (differences.empty()) return;
             throw UsageError(concat("load_state: of '", name, "' ", differences[0].text,
                                     "; register the same tensors"));
           }});
}

SnapshotDirectory& Accelerator::snapshots_in(const std::string& directory) {
  const std::string& path = directory.empty() ? options().directory : directory;
  if (path.empty()) {
    throw UsageError("Accelerator: directory is empty; name the folder of the snapshots");
  }
  const SnapshotDirectoryOptions how{.keep_last = options().keep_last,
                                     .asynchronous_saves = options().asynchronous_saves,
                                     .sharded_saves = options().sharded_saves,
                                     .process_group = process_group()};
  return state_->directories.try_emplace(path, path, how).first->second;
}

void Accelerator::save_state(const std::string& directory) {
  if (state_->replicas.empty() || state_->optimizers.empty()) {
    throw UsageError("save_state: prepare a model and an optimizer first");
  }
  if (state_->is_accumulating()) {
    throw UsageError(
        "save_state: gradients are being accumulated, which it does not hold; save when "
        "sync_gradients() is true");
  }
  state_->run_on_survivors([&] {
    SnapshotDirectory& snapshots = snapshots_in(directory);
    const std::unique_ptr<internal::GatheredState> gathered = state_->gathered_state();
    snapshots.claim();
    c10::IValue values;
    run_on_all(process_group(), "save a state", [&] { values = state_->values(); });
    if (gathered) return snapshots.save(*gathered, state_->save_options(values));
    snapshots.save(*state_->replicas.front()->module(), *state_->optimizers.front()->optimizer,
                   state_->save_options(values));
  });
}

bool Accelerator::save_and_leave() {
  return state_->save_and_leave();
}

void Accelerator::leave_training() {
  state_->leave_training();
}

void Accelerator::wait_for_saves() {
  for (auto& [path, snapshots] : state_->directories) snapshots.wait();
}

bool Accelerator::load_state(const std::string& directory) {
  if (state_->replicas.empty() || state_->optimizers.empty()) {
    throw UsageError("load_state: prepare a model and an optimizer first");
  }
  state_->end_left_step();
  // The state comes from the other ranks, unless all have lost it.
  if (state_->is_discarding() && !state_->arrive_to_load(snapshots_in(directory))) return true;
  SnapshotDirectory& snapshots = snapshots_in(directory);
  if (snapshots.path() == options().directory) snapshots.claim();
  const std::unique_ptr<internal::GatheredState> gathered = state_->gathered_state();
  const auto source_of = [](const LoadedSnapshot& one) {
    return concat("load ", one.path.string());
  };
  std::optional<LoadedSnapshot> resumed;
  try {
    const auto check = [&](const LoadedSnapshot& found) {
      state_->check_values(found.values, source_of(found));
      state_->take_registered(found.values, source_of(found));
    };
    resumed = gathered ? snapshots.load_latest(*gathered, check)
                       : snapshots.load_latest(*state_->replicas.front()->module(),
                                               *state_->optimizers.front()->optimizer, check);
  } catch (...) {
    state_->give_back_registered();
    throw;
  }
  if (!resumed) return false;
  state_->take_values(resumed->values, source_of(*resumed));
  state_->set_steps(resumed->step);
  return true;
}

}  // namespace lockstep
