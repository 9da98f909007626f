#include "lockstep/optim/internal/group_update.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/optim/internal/fused_batch.h"
#include "lockstep/optim/internal/lamb_norms.h"
#include "lockstep/optim/internal/option_updates.h"
#include "lockstep/optim/internal/update_range.h"

namespace lockstep::inline internal {
namespace {

/// A parameter that is updated. `parameter` and `gradient` are the optimizer's own tensors unless
/// those are not dense in memory, or not in the same order: then copies that are. Where ranks have
/// one copy of it, this rank updates its part, and `gradient` is undefined.
struct Target {
  std::size_t place = 0;
  at::Tensor original;
  at::Tensor parameter;
  at::Tensor gradient;
  /// Those that the options need, by the description's order.
  std::array<at::Tensor, kMostStates> states = {};
  DescribedState* state = nullptr;
  bool has_new_momentum = false;
  bool is_batched = false;
  ModelCopy::Place shared = {};
};

bool is_sparse(const at::Tensor& gradient) {
  return gradient.defined() && gradient.layout() == at::kSparse;
}

bool has_same_order(const at::Tensor& a, const at::Tensor& b) {
  return a.strides() == b.strides() || (a.is_contiguous() && b.is_contiguous());
}

at::Tensor in_order_of(const at::Tensor& tensor, const at::Tensor& model, at::ScalarType dtype) {
  at::Tensor copy = at::empty_like(model, model.options().dtype(dtype));
  copy.copy_(tensor);
  return copy;
}

at::Tensor step_tensor(std::int64_t step, at::Device device) {
  return at::scalar_tensor(static_cast<double>(step), at::TensorOptions(at::kFloat).device(device));
}

/// LibTorch counts no change that a kernel makes.
void note_change(const at::Tensor& parameter) {
  if (!parameter.is_inference()) parameter.unsafeGetTensorImpl()->bump_version();
}

/// What PyTorch's optimizers do with sparse gradients.
bool supports_sparse(const SGDOptions& options) {
  return options.momentum == 0 && options.weight_decay == 0;
}
bool supports_sparse(const AdagradOptions& options) {
  return options.weight_decay == 0;
}
template <class Options>
bool supports_sparse(const Options&) {
  return false;
}

/// What goes into one call of a fused kernel.
struct Batch : FusedBatch {
  std::vector<const Target*> targets = {};
};

template <class Options>
class GroupUpdate final : public GroupStep {
 public:
  using Kind = Described<Options>;
  using Update = decltype(update_of(std::declval<const Options&>(), StepCounts()));

  /// What runs over chunks of a share.
  using SharedUpdate =
      std::conditional_t<std::is_same_v<Options, LAMBOptions>, LambScaledUpdate, Update>;

  GroupUpdate(torch::optim::Optimizer& optimizer, std::size_t group, const Options& options)
      : optimizer_(optimizer), group_(group), options_(options) {
    const c10::NoGradGuard no_grad;
    if constexpr (std::is_same_v<Options, LAMBOptions>) {
      prepare_lamb();
    } else {
      collect();
      for (Target& target : targets_) prepare(target);
    }
  }

  void run() override {
    const c10::NoGradGuard no_grad;
    for (Target& target : targets_) {
      begin(target);
      if (is_sparse(target.gradient)) {
        update_sparse(target);
      } else {
        update_dense(target);
      }
      if (!target.is_batched) finish(target);
    }
    for (const Batch& batch : batches_) {
      if constexpr (Kind::kIsFused) run_fused(batch, options_);
      for (const Target* const target : batch.targets) finish(*target);
    }
  }

  void run_shard() override {
    const c10::NoGradGuard no_grad;
    for (const auto& [target, update] : shared_) add_ranges(*target, update);
    update_waiting();
  }

 private:
  void collect() {
    const std::vector<at::Tensor>& parameters = optimizer_.param_groups()[group_].params();
    for (std::size_t place = 0; place < parameters.size(); ++place) {
      ModelCopy::Place shared = ModelCopy::find(parameters[place]);
      const at::Tensor& gradient = parameters[place].grad();
      if (shared.copy ? !shared.copy->is_reached(shared.index) : !gradient.defined()) continue;
      Target& target = targets_.emplace_back();
      target.place = place;
      target.original = target.parameter = parameters[place];
      target.shared = std::move(shared);
      if (target.shared.copy) {
        check_shared(target);
      } else {
        target.gradient = gradient;
        check(target);
      }
    }
  }

  void check(const Target& target) const {
    const at::Tensor& parameter = target.parameter;
    const at::ScalarType dtype = parameter.scalar_type();
    if (dtype != at::kFloat && dtype != at::kDouble && dtype != at::kBFloat16 &&
        dtype != at::kHalf) {
      refuse(target,
             concat("is ", dtype, "; supported are float32, float64, bfloat16 and float16"));
    }
    // Kernels take pointers and one number of elements for all.
    if (target.gradient.sizes() != parameter.sizes()) {
      refuse(target,
             concat("has shape ", parameter.sizes(), ", its gradient ", target.gradient.sizes(),
                    "; call zero_grad() and backward() after the parameter's shape changes"));
    }
    check_state(target);
    if (is_sparse(target.gradient)) {
      if (supports_sparse(options_)) return;
      refuse(target, concat("has a sparse gradient, which ", Kind::kName,
                            " does not support with these options; use SGD without momentum and "
                            "weight_decay, Adagrad without weight_decay, or dense gradients"));
    }
    if (target.gradient.layout() != at::kStrided || parameter.layout() != at::kStrided) {
      refuse(target, concat("has layout ", parameter.layout(), ", its gradient ",
                            target.gradient.layout(), "; only dense ones are supported"));
    }
    if (target.gradient.scalar_type() != dtype || target.gradient.device() != parameter.device()) {
      refuse(target, concat("is ", dtype, " on ", parameter.device(), ", its gradient ",
                            target.gradient.scalar_type(), " on ", target.gradient.device(),
                            "; convert the gradient"));
    }
    const bool is_offered = parameter.is_cpu() || (Kind::kIsFused && parameter.is_cuda() &&
                                                   state_dtype(parameter) == dtype);
    if (!is_offered) {
      refuse(target, concat("is on ", parameter.device(),
                            "; on a CUDA device use SGD, Adam, AdamW or Adagrad without "
                            "state_dtype, else the CPU"));
    }
  }

  void check_shared(const Target& target) const { check_state(target); }

  void check_state(const Target& target) const {
    const DescribedState* const state = find_state(target);
    if (state == nullptr) return;
    for (std::size_t k = 0; k < state->tensors.size(); ++k) {
      const at::Tensor& tensor = state->tensors[k];
      if (!tensor.defined() || tensor.sizes() == target.parameter.sizes()) continue;
      refuse(target, concat("has shape ", target.parameter.sizes(), ", its state '",
                            state->description->tensors[k], "' ", tensor.sizes(),
                            "; make a new optimizer after the parameter's shape changes"));
    }
  }

  DescribedState* find_state(const Target& target) const {
    const auto found = optimizer_.state().find(target.original.unsafeGetTensorImpl());
    return found == optimizer_.state().end() ? nullptr
                                             : static_cast<DescribedState*>(found->second.get());
  }

  [[noreturn]] void refuse(const Target& target, const std::string& reason) const {
    throw UsageError(
        concat(Kind::kName, "::step: parameter ", target.place, " of group ", group_, " ", reason));
  }

  at::ScalarType state_dtype(const at::Tensor& parameter) const {
    const bool is_low =
        parameter.scalar_type() == at::kBFloat16 || parameter.scalar_type() == at::kHalf;
    return is_low ? options_.state_dtype.value_or(parameter.scalar_type())
                  : parameter.scalar_type();
  }

  /// All that may fail, before anything is written.
  void prepare(Target& target) const {
    if (!target.shared.copy && !is_sparse(target.gradient)) {
      // Kernels read memory, in which a view that negates is not negated.
      target.parameter = target.parameter.resolve_neg();
      target.gradient = target.gradient.resolve_neg();
      if (!target.parameter.is_non_overlapping_and_dense()) {
        target.parameter = target.parameter.contiguous();
      }
      if (!has_same_order(target.gradient, target.parameter)) {
        target.gradient =
            in_order_of(target.gradient, target.parameter, target.parameter.scalar_type());
      }
    }
    const DescribedState* const state = find_state(target);
    for (std::size_t k = 0; k < Kind::tensors().size(); ++k) {
      if (!needs_state(k)) continue;
      const at::Tensor kept = state == nullptr ? at::Tensor() : state->tensors[k];
      // The copy has room for a new state already.
      if (!target.shared.copy || kept.defined()) target.states[k] = fitting_state(target, kept);
      if (target.shared.copy) {
        target.shared.copy->prepare_state(target.shared.index, k, target.states[k],
                                          state_dtype(target.parameter));
      }
    }
  }

  void prepare_lamb() {
    LambNorms norms;
    try {
      collect();
      for (Target& target : targets_) prepare(target);
      add_lamb_norms(norms);
    } catch (...) {
      refuse_lamb_ratios();
      throw;
    }
    const std::vector<double> ratios = norms.ratios();
    auto ratio = ratios.begin();
    for (const Target& target : targets_) {
      if (target.shared.copy) lamb_ratios_[target.place] = *ratio++;
    }
  }

  /// Of parameters of which ranks have one copy: nothing of it is written before.
  void add_lamb_norms(LambNorms& norms) {
    std::set<std::pair<const ModelCopy*, std::size_t>> seen;
    for (const Target& target : targets_) {
      if (!target.shared.copy) continue;
      if (!seen.emplace(target.shared.copy.get(), target.shared.index).second) {
        refuse(target,
               "occurs twice, which LAMB does not support with one_copy_per_machine; name it once");
      }
      const DescribedState* const state = find_state(target);
      norms.add(target.shared,
                update_of(options_, StepCounts{.step = state == nullptr ? 1 : state->step + 1}),
                range_without_gradient(target));
    }
  }

  /// Else peers would wait for this rank's norms: those of this group, or where it has no copy of
  /// the next that has one.
  void refuse_lamb_ratios() const {
    const auto& groups = optimizer_.param_groups();
    for (std::size_t group = group_; group < groups.size(); ++group) {
      for (const at::Tensor& parameter : groups[group].params()) {
        const auto [copy, index] = ModelCopy::find(parameter);
        if (copy && copy->is_reached(index)) return copy->refuse_step();
      }
    }
  }

  bool needs_state(std::size_t k) const {
    if constexpr (std::is_same_v<Options, SGDOptions>) return has_momentum();
    if constexpr (requires { options_.amsgrad; }) return k < 2 || options_.amsgrad;
    if constexpr (std::is_same_v<Options, RMSpropOptions>) {
      return k == 0 || (k == 1 ? options_.momentum > 0 : options_.centered);
    }
    return true;
  }

  /// Makes the state the optimizer's, and counts the step.
  void begin(Target& target) const {
    const bool keeps_state = !std::is_same_v<Options, SGDOptions> || has_momentum();
    if (!keeps_state) return;
    auto& state = optimizer_.state()[target.original.unsafeGetTensorImpl()];
    if (!state) state = std::make_unique<DescribedState>(description_of<Options>());
    target.state = static_cast<DescribedState*>(state.get());
    target.has_new_momentum = !target.state->tensors[0].defined();
    for (std::size_t k = 0; k < Kind::tensors().size(); ++k) {
      if (!needs_state(k)) continue;
      // A parameter that occurs twice has one state.
      at::Tensor& kept = target.state->tensors[k];
      if (fits(target, kept)) target.states[k] = kept;
      if (target.shared.copy) {
        target.states[k] =
            target.shared.copy->adopt_state(target.shared.index, k, target.states[k],
                                            state_dtype(target.parameter), initial_state());
      }
      kept = target.states[k];
    }
    ++target.state->step;
  }

  static void finish(const Target& target) {
    if (!target.parameter.is_same(target.original)) target.original.copy_(target.parameter);
    note_change(target.original);
  }

  bool has_momentum() const {
    if constexpr (requires { options_.momentum; }) return options_.momentum != 0;
    return false;
  }

  bool fits(const Target& target, const at::Tensor& kept) const {
    return kept.defined() && kept.scalar_type() == state_dtype(target.parameter) &&
           kept.device() == target.parameter.device() && has_same_order(kept, target.parameter);
  }

  /// A tensor of the state, made where it is missing and put in order where it is not.
  at::Tensor fitting_state(const Target& target, const at::Tensor& kept) const {
    if (fits(target, kept)) return kept;
    const at::ScalarType dtype = state_dtype(target.parameter);
    if (kept.defined()) return in_order_of(kept, target.parameter.detach(), dtype);
    return at::full_like(target.parameter.detach(), initial_state(),
                         target.parameter.options().dtype(dtype).requires_grad(false));
  }

  double initial_state() const {
    if constexpr (requires { options_.initial_accumulator_value; }) {
      return options_.initial_accumulator_value;
    }
    return 0;
  }

  UpdateRange range_of(const Target& target) const {
    UpdateRange range = range_without_gradient(target);
    range.gradient = target.gradient.const_data_ptr();
    return range;
  }
  UpdateRange range_without_gradient(const Target& target) const {
    UpdateRange range{.dtype = target.parameter.scalar_type(),
                      .state_dtype = state_dtype(target.parameter),
                      .parameter = target.parameter.data_ptr(),
                      .gradient = nullptr,
                      .states = {},
                      .elements = target.parameter.numel(),
                      .maximize = options_.maximize};
    for (std::size_t k = 0; k < kMostStates; ++k) {
      if (target.states[k].defined()) range.states[k] = target.states[k].data_ptr();
    }
    return range;
  }

  /// By ATen's kernel for many tensors, or by one of ours where ATen has none.
  bool joins_batch(const Target& target) const {
    if constexpr (std::is_same_v<Options, SGDOptions>) {
      const at::Tensor& parameter = target.parameter;
      if (parameter.is_cpu() && has_momentum() && loses_momentum(parameter.scalar_type())) {
        return false;
      }
    }
    return state_dtype(target.parameter) == target.parameter.scalar_type();
  }
  void add_to_batch(Target& target, std::int64_t step) {
    const at::Device device = target.parameter.device();
    const at::ScalarType dtype = target.parameter.scalar_type();
    auto batch = std::ranges::find_if(batches_, [&](const Batch& one) {
      return one.device == device && one.dtype == dtype && one.step == step;
    });
    if (batch == batches_.end()) {
      batch =
          batches_.insert(batches_.end(), Batch{{.device = device, .dtype = dtype, .step = step}});
    }
    batch->parameters.push_back(target.parameter);
    batch->gradients.push_back(target.gradient);
    batch->steps.push_back(batch->steps.empty() ? step_tensor(step, device) : batch->steps[0]);
    for (std::size_t k = 0; k < kMostStates; ++k) {
      if (target.states[k].defined()) batch->states[k].push_back(target.states[k]);
    }
    batch->targets.push_back(&target);
    target.is_batched = true;
  }

  void update_dense(Target& target) {
    const Update update = update_of(options_, count_step(target));
    if constexpr (std::is_same_v<Options, LAMBOptions>) {
      if (target.shared.copy) {
        const double ratio = lamb_ratios_[target.place];
        shared_.emplace_back(&target,
                             LambScaledUpdate{.update = update, .scale = options_.lr * ratio});
        return;
      }
      const UpdateRange range = range_of(target);
      const double ratio = lamb_trust_ratio(update_lamb_states(update, range));
      update_range(LambScaledUpdate{.update = update, .scale = options_.lr * ratio}, range);
    } else if (target.shared.copy) {
      shared_.emplace_back(&target, update);
    } else if (Kind::kIsFused && joins_batch(target)) {
      add_to_batch(target, batch_step(update));
    } else {
      update_range(update, range_of(target));
    }
  }

  StepCounts count_step(const Target& target) const {
    StepCounts counts{.makes_momentum = has_momentum() && target.has_new_momentum};
    if (target.state == nullptr) return counts;
    counts.step = target.state->step;
    if constexpr (std::is_same_v<Options, NAdamOptions>) {
      double& product = target.state->numbers[0];
      product = next_mu_product(options_, counts.step, product);
      counts.mu_product = product;
    }
    return counts;
  }

  // SGD has no count of steps: here it says whether the momentum is still to be made.
  static std::int64_t batch_step(const SgdUpdate& update) { return update.is_first_step ? 1 : 0; }
  template <class Counted>
  static std::int64_t batch_step(const Counted& update) {
    if constexpr (requires { update.step; }) return update.step;
    return 0;
  }

  /// Averages this rank's part, chunk by chunk, into a buffer that stays in the cache. What is in
  /// the buffer is updated when it has a chunk: small parameters go together.
  void add_ranges(const Target& target, const SharedUpdate& update) {
    const auto& [copy, index] = target.shared;
    const at::ScalarType dtype = target.parameter.scalar_type();
    const auto bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
    UpdateRange range{.dtype = dtype,
                      .state_dtype = state_dtype(target.parameter),
                      .parameter = nullptr,
                      .gradient = nullptr,
                      .states = {},
                      .elements = 0,
                      .maximize = options_.maximize};
    const bool joins = !waiting_.empty() && waiting_update_ == update && waiting_copy_ == copy &&
                       waiting_[0].dtype == range.dtype &&
                       waiting_[0].state_dtype == range.state_dtype;
    if (!joins) update_waiting();
    waiting_update_ = update;
    waiting_copy_ = copy;
    // Alike on all ranks: they divide a share into the same chunks.
    const bool is_small = has_own_kernel(update, range_without_gradient(target));
    const std::int64_t most =
        (is_small ? ModelCopy::kSmallChunkBytes : ModelCopy::kChunkBytes) / bytes;
    const ModelCopy::Part part = copy->part(index);
    for (std::int64_t begin = part.begin; begin < part.end; begin += range.elements) {
      range.elements = std::min(most - waiting_elements_, part.end - begin);
      std::byte* const average = copy->scratch() + waiting_elements_ * bytes;
      copy->average(index, begin, range.elements, average);
      range.parameter = copy->parameter_at(index, begin);
      range.gradient = average;
      for (std::size_t k = 0; k < kMostStates; ++k) {
        if (target.states[k].defined()) range.states[k] = copy->state_at(index, k, begin);
      }
      waiting_.push_back(range);
      waiting_elements_ += (range.elements + kRangeElements - 1) / kRangeElements * kRangeElements;
      if (waiting_elements_ == most) update_waiting();
    }
  }

  void update_waiting() {
    if (!waiting_.empty()) {
      collect_pieces();
      waiting_copy_->run_chunk(pieces_, [&] {
        if constexpr (std::is_same_v<Options, LAMBOptions>) {
          for (const UpdateRange& range : waiting_) {
            update_lamb_states(waiting_update_->update, range);
          }
        }
        update_ranges(*waiting_update_, waiting_);
      });
    }
    waiting_.clear();
    waiting_elements_ = 0;
  }

  /// What the waiting ranges overwrite. Small parameters lie one behind the other: one piece.
  void collect_pieces() {
    pieces_.clear();
    const auto add = [&](const void* data, std::int64_t elements, at::ScalarType dtype) {
      const auto bytes = static_cast<std::uint64_t>(c10::elementSize(dtype));
      const ModelCopy::Piece piece =
          waiting_copy_->piece(data, static_cast<std::uint64_t>(elements) * bytes);
      // Between two parameters there may be what fills the last block of the first.
      const std::uint64_t end = pieces_.empty() ? 0 : pieces_.back().offset + pieces_.back().bytes;
      if (!pieces_.empty() && piece.offset >= end &&
          piece.offset - end < CopyLayout::kBlockElements * bytes) {
        pieces_.back().bytes = piece.offset + piece.bytes - pieces_.back().offset;
      } else {
        pieces_.push_back(piece);
      }
    };
    for (const UpdateRange& range : waiting_) add(range.parameter, range.elements, range.dtype);
    for (std::size_t k = 0; k < kMostStates; ++k) {
      for (const UpdateRange& range : waiting_) {
        if (range.states[k] != nullptr) add(range.states[k], range.elements, range.state_dtype);
      }
    }
  }

  void update_sparse(const Target& target) {
    if constexpr (std::is_same_v<Options, SGDOptions>) {
      target.parameter.add_(target.gradient, options_.maximize ? options_.lr : -options_.lr);
    } else if constexpr (std::is_same_v<Options, AdagradOptions>) {
      const at::Tensor gradient = target.gradient.coalesce();
      const at::Tensor values =
          options_.maximize ? gradient._values().neg() : gradient._values().detach();
      const auto sparse = [&](const at::Tensor& of) {
        return at::_sparse_coo_tensor_unsafe(gradient._indices(), of, gradient.sizes());
      };
      const at::Tensor& sum = target.states[0];
      // Squares of what float16 still holds may be out of its range.
      sum.add_(sparse(values.to(sum.scalar_type()).square()));
      const at::Tensor deviation = sum.sparse_mask(gradient)._values().sqrt().add_(options_.eps);
      const double decayed =
          options_.lr / (1 + static_cast<double>(target.state->step - 1) * options_.lr_decay);
      target.parameter.add_(sparse((values / deviation).to(values.scalar_type())), -decayed);
    }
  }

  torch::optim::Optimizer& optimizer_;
  const std::size_t group_;
  const Options options_;
  std::vector<Target> targets_;
  std::vector<Batch> batches_;
  std::vector<std::pair<const Target*, SharedUpdate>> shared_;
  std::map<std::size_t, double> lamb_ratios_;  ///< By the parameter's place.
  std::vector<ModelCopy::Piece> pieces_;       ///< Kept for its memory.
  /// Ranges of one copy whose gradients lie in its buffer, for one update.
  std::vector<UpdateRange> waiting_;
  std::shared_ptr<ModelCopy> waiting_copy_;
  std::optional<SharedUpdate> waiting_update_;
  std::int64_t waiting_elements_ = 0;
};

}  // namespace

template <class Options>
std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer& optimizer, std::size_t group,
                                              const Options& options) {
  return std::make_unique<GroupUpdate<Options>>(optimizer, group, options);
}

template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const SGDOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const AdamOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const AdamWOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const AdagradOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const NAdamOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const RAdamOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const AdamaxOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const AdadeltaOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const RMSpropOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const LionOptions&);
template std::unique_ptr<GroupStep> prepare_group_step(torch::optim::Optimizer&, std::size_t,
                                                       const LAMBOptions&);

}  // namespace lockstep::inline internal
