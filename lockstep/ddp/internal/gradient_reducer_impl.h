#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/agreement.h"
#include "lockstep/ddp/exchange/exchange_plan.h"
#include "lockstep/ddp/exchange/exchange_recorder.h"
#include "lockstep/ddp/exchange/exchange_schedule.h"
#include "lockstep/ddp/exchange/gradient_memory.h"
#include "lockstep/ddp/exchange/gradient_scale.h"
#include "lockstep/ddp/exchange/gradient_weight.h"
#include "lockstep/ddp/exchange/graph_agreement.h"
#include "lockstep/ddp/internal/gradient_hooks.h"
#include "lockstep/ddp/internal/gradient_reducer.h"
#include "lockstep/ddp/internal/reached_parameters.h"

namespace lockstep::inline internal {

/// What GradientReducer knows and does while backward runs: see its comment.
/// Threads: the functions that autograd's hooks call lock the mutex; the others want it locked.
struct GradientReducer::Impl {
  // Constant after construction.
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  ProcessGroup group;
  DistributedDataParallelOptions options;
  Plan plan;
  ExchangeOptions exchange;
  std::string backward_name;  // what ranks must agree on
  std::string weighted_backward_name;
  std::string backward_with_units_name;
  std::unique_ptr<GradientMemory> memory;
  std::unique_ptr<GradientHooks> hooks;

  std::atomic<std::thread::id> training_thread = std::this_thread::get_id();  // of the last forward
  // Of the training thread: while passes add nothing.
  std::optional<GradientHooks::Multiply> no_data;

  mutable std::mutex mutex;  // guards all that follows
  bool sync = true;
  bool has_norm = false;                       // exchange.sum_of_squares is that of all gradients
  std::unique_ptr<ReachedParameters> reached;  // null where unused parameters are not looked for

  // Known once the first backward pass has shown it.
  bool is_planned = false;
  ExchangePlan planned;
  std::unique_ptr<ExchangeRecorder> recorder;
  std::vector<std::string> abouts;      // of each exchange: what its collectives are for
  std::vector<GradientLayout> layouts;  // of each parameter's gradients, on any rank
  // The exchanged parameters of which no rank has had a gradient, and what this rank has of them
  // in the pass under way.
  std::vector<std::size_t> unreached;
  std::vector<GradientLayout> own_layouts;
  std::vector<int> additions;  // to each gradient, on this rank, in one backward pass
  // Got a gradient although the outputs of forward do not depend on them.
  std::vector<bool> used_elsewhere;

  GradientWeight weight;       // of the gradients since the last exchange
  std::uint64_t own_pass = 0;  // the number of the last weighted pass of this model's loss
  // The last gradient of the passes since the last exchange, as it was left.
  struct LastGradient {
    std::size_t index = 0;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    std::int64_t version = 0;
    std::uint64_t pass = 0;  // the number of the weighted pass that it came in
  };
  std::optional<LastGradient> last_gradient;

  // Of the backward pass under way.
  enum class Phase : std::uint8_t {
    kNone,
    kToldOthers,  // that this rank begins; no gradient has come
    kExchanges,
  };
  Phase phase = Phase::kNone;
  Agreement agreement;  // of all ranks that this pass begins
  GradientScale scale;
  ExchangeSchedule schedule;
  std::vector<int> expected;                // additions
  std::vector<std::size_t> last_additions;  // in the first pass: which parameters, in order

  bool is_reached(std::size_t index) const {
    return !reached || !reached->is_known() || reached->contains(index);
  }
  explicit Impl(ProcessGroup of);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  struct Registry {
    std::mutex mutex;
    std::vector<Impl*> reducers;  // of this process
  };
  static Registry& registry();

  /// Before a weighted pass of this model's loss, which may reach the parameters of any other model
  /// of its thread.
  void forget_what_all_gave_up();

  UsageError usage_error(std::size_t index, const std::string& what) const;
  void gradient_ready(std::size_t index, const at::Tensor& arrived);
  bool keeps_memory(std::size_t index) const;
  void add_weight(const WeightedPass::Facts* pass);
  void forget_what_was_given_up();
  void forget_passes();
  void note_last_gradient(std::size_t index);
  bool is_untouched(const LastGradient& gradient) const;
  bool has_gradients() const;
  const std::string& name_of_pass() const;
  void begin_exchange();
  void begin_backward();
  void end_failed_pass(const GradientWeight& before);
  void fill(std::size_t index, const at::Tensor& arrived = {});
  const std::vector<Agreement::Numbers>& wait_until_all_begin();
  void start_complete();
  void finish_backward();
  void start(std::size_t exchange_number);
  void finish(std::size_t exchange_number);
  void plan_by_first_pass();
  void adopt_plan();
  ObservedGraph observe() const;
  GradientLayout own_layout(std::size_t index) const;
  void check_layout(std::size_t index) const;
  void refuse_both_layouts(std::size_t index) const;
  void note_unreached();
  void settle_unreached();
  void exchange_as_sparse(const std::vector<std::size_t>& indices);
  void add_up_squares();
  std::string about(std::size_t exchange_number) const;
  std::string context(std::size_t exchange_number) const;
};

}  // namespace lockstep::inline internal
