#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/internal/agreement.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/distributed_data_parallel_options.h"
#include "lockstep/ddp/exchange/bucket_plan.h"
#include "lockstep/ddp/exchange/exchange_plan.h"
#include "lockstep/ddp/exchange/exchange_recorder.h"
#include "lockstep/ddp/exchange/exchange_schedule.h"
#include "lockstep/ddp/exchange/gradient_memory.h"
#include "lockstep/ddp/exchange/gradient_scale.h"
#include "lockstep/ddp/exchange/gradient_weight.h"
#include "lockstep/ddp/exchange/graph_agreement.h"
#include "lockstep/ddp/exchange/one_copy_gradients.h"
#include "lockstep/ddp/exchange_report.h"
#include "lockstep/ddp/internal/gradient_hooks.h"
#include "lockstep/ddp/internal/reached_parameters.h"
#include "lockstep/ddp/internal/weighted_pass.h"

namespace lockstep::inline internal {

/// Averages gradients over all ranks, one bucket at a time, while backward runs.
///
/// A hook on each parameter copies its gradient into a bucket when autograd has computed it. A full
/// bucket is exchanged at once. At the end of backward() the rest is exchanged, and every .grad
/// becomes a view of its bucket. In a group that shares memory large gradients are not copied:
/// autograd writes them there, and they are averaged in place. A parameter without a gradient on
/// this rank takes part with zeros, and keeps an undefined .grad if no rank has one.
///
/// The first backward pass that exchanges gradients does so at its end. It shows in which order
/// they arrive (rank 0's order is used), how often autograd adds to each (more than once if a
/// module runs nested backward passes), which are sparse, and which no rank has. Buckets are
/// planned from that. A parameter whose first gradient arrives in a later pass and is sparse leaves
/// its bucket in that pass. The norm of the averages, if requested, is computed from the sums of
/// squares of all buckets, of which each rank computes a part.
///
/// Threads: create and set it on the training thread; hooks run on autograd threads.
/// Lifetime: the destructor removes the hooks.
/// Errors: from backward(): UsageError for a gradient that arrives after its bucket was exchanged,
/// or that has another layout than in the first pass, on any rank; else as Work::wait. After any
/// error, destroy it.
class GradientReducer final : public GradientHooks::Target {
 public:
  /// Plan from the options for these parameters.
  struct Plan {
    BucketCaps caps;
    /// Indices of parameters that are exchanged after the bucket with the gradient of
    /// `delay_until`.
    std::vector<std::size_t> delayed = {};
    std::size_t delay_until = 0;
    /// Null: each rank has its own parameters. Else backward exchanges nothing.
    std::shared_ptr<OneCopyGradients> one_copy = {};
    /// Called at the end of each backward pass whose gradients were exchanged.
    std::function<void()> after_exchange;
  };

  /// `parameters` require gradients; `names` are for errors.
  GradientReducer(std::vector<at::Tensor> parameters, std::vector<std::string> names,
                  ProcessGroup group, const DistributedDataParallelOptions& options, Plan plan);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Before and after each forward pass, on the thread that will call backward().
  void before_forward();
  void after_forward();
  /// Outputs of forward, for find_unused_parameters.
  void add_outputs(const std::vector<at::Tensor>& outputs);

  /// If false, backward() leaves local gradients in .grad.
  void set_sync(bool sync);
  bool sync() const;

  /// Errors: UsageError with a parameter whose gradients no longer arrive here, because its dtype
  /// or device was changed or it was frozen after construction.
  void check_parameters() const;

  /// Runs `backward`, a pass of a loss with a weight. Weights are summed until the exchange:
  /// gradients then become the weighted mean over all ranks and all passes since the last exchange,
  /// each of which must have a weight. A pass of weight 0 adds nothing, even NaN; one that reaches
  /// no parameter takes part in the exchange. `loss`: its dtype. `backward` gets the factor for the
  /// gradient of the loss.
  void run_weighted(double weight, at::ScalarType loss,
                    const std::function<void(double seed)>& backward);

  /// Discards the weights of the passes since the last exchange, with their gradients.
  void discard_passes();

  /// If false, passes add nothing, even NaN, and weights are 0.
  void set_has_data(bool has_data);

  /// See GradientWeight.
  void cast_vote(bool has_data, int vote);
  std::optional<int> withdraw_vote();

  /// Norm of all averaged gradients after the last pass that exchanged them; empty before the
  /// first, and if not requested. With one copy per machine collective: the first call after a
  /// backward pass averages its gradients, which must not be discarded or used before.
  std::optional<double> gradient_norm();

  /// Empty before the first exchange.
  std::vector<BucketLayout> bucket_layout() const;
  /// Report of the last exchange; empty before the first, and if not requested.
  std::optional<ExchangeReport> exchange_report() const;

  /// Whether a backward pass has begun to exchange gradients and has not ended.
  bool in_backward() const;

 private:
  struct Registry {
    Mutex mutex;
    std::vector<GradientReducer*> reducers LOCKSTEP_GUARDED_BY(mutex);  // of this process
  };
  static Registry& registry();

  /// The gradient that was added up last in the passes since the last exchange, as it was left.
  struct LastGradient {
    std::size_t index = 0;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    std::int64_t version = 0;
    std::uint64_t pass = 0;  // the number of the weighted pass that it came in
  };

  enum class Phase : std::uint8_t {
    kNone,
    kToldOthers,  // that this rank begins; no gradient has come
    kExchanges,
  };

  /// Before a weighted pass of this model's loss, which may reach the parameters of any other model
  /// of its thread.
  static void forget_what_all_gave_up();

  // Autograd calls these, which lock the mutex.
  void gradient_ready(std::size_t index, const at::Tensor& arrived) override;
  void backward_ended() override { finish_backward(); }
  void finish_backward();
  void exchange_at_end() LOCKSTEP_REQUIRES(mutex_);

  UsageError usage_error(std::size_t index, const std::string& what) const;
  bool is_reached(std::size_t index) const LOCKSTEP_REQUIRES(mutex_) {
    return !reached_ || !reached_->is_known() || reached_->contains(index);
  }
  bool keeps_memory(std::size_t index) const LOCKSTEP_REQUIRES(mutex_);
  void add_weight(const WeightedPass::Facts* pass) LOCKSTEP_REQUIRES(mutex_);
  void forget_what_was_given_up() LOCKSTEP_REQUIRES(mutex_);
  void forget_passes() LOCKSTEP_REQUIRES(mutex_);
  void note_last_gradient(std::size_t index) LOCKSTEP_REQUIRES(mutex_);
  bool is_untouched(const LastGradient& gradient) const;
  bool has_gradients() const;
  const std::string& name_of_pass() const LOCKSTEP_REQUIRES(mutex_);
  void begin_exchange() LOCKSTEP_REQUIRES(mutex_);
  void begin_backward() LOCKSTEP_REQUIRES(mutex_);
  void end_failed_pass(const GradientWeight& before) LOCKSTEP_REQUIRES(mutex_);
  void fill(std::size_t index, const at::Tensor& arrived = {}) LOCKSTEP_REQUIRES(mutex_);
  const std::vector<Agreement::Numbers>& wait_until_all_begin() LOCKSTEP_REQUIRES(mutex_);
  void start_complete() LOCKSTEP_REQUIRES(mutex_);
  void start(std::size_t exchange_number) LOCKSTEP_REQUIRES(mutex_);
  void finish(std::size_t exchange_number) LOCKSTEP_REQUIRES(mutex_);
  void plan_by_first_pass() LOCKSTEP_REQUIRES(mutex_);
  void adopt_plan() LOCKSTEP_REQUIRES(mutex_);
  ObservedGraph observe() const LOCKSTEP_REQUIRES(mutex_);
  GradientLayout own_layout(std::size_t index) const;
  void check_layout(std::size_t index) const LOCKSTEP_REQUIRES(mutex_);
  void refuse_both_layouts(std::size_t index) const;
  void note_unreached() LOCKSTEP_REQUIRES(mutex_);
  void settle_unreached() LOCKSTEP_REQUIRES(mutex_);
  void exchange_as_sparse(const std::vector<std::size_t>& indices) LOCKSTEP_REQUIRES(mutex_);
  void add_up_squares() LOCKSTEP_REQUIRES(mutex_);
  std::string about(std::size_t exchange_number) const LOCKSTEP_REQUIRES(mutex_);
  std::string context(std::size_t exchange_number) const LOCKSTEP_REQUIRES(mutex_);

  // Constant after construction.
  std::vector<at::Tensor> parameters_;
  std::vector<std::string> names_;
  ProcessGroup group_;
  DistributedDataParallelOptions options_;
  Plan plan_;
  ExchangeOptions exchange_;
  std::string backward_name_;  // what ranks must agree on
  std::string weighted_backward_name_;
  std::string backward_with_units_name_;
  std::unique_ptr<GradientMemory> memory_;
  std::unique_ptr<GradientHooks> hooks_;

  std::atomic<std::thread::id> training_thread_ =
      std::this_thread::get_id();  // of the last forward
  // While passes add nothing. Only the training thread uses it.
  std::optional<GradientHooks::Multiply> no_data_;

  mutable Mutex mutex_;
  bool sync_ LOCKSTEP_GUARDED_BY(mutex_) = true;
  // Whether exchange_.sum_of_squares is that of all gradients.
  bool has_norm_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // Null where unused parameters are not looked for.
  std::unique_ptr<ReachedParameters> reached_ LOCKSTEP_GUARDED_BY(mutex_);

  // Known once the first backward pass has shown it.
  bool is_planned_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  ExchangePlan planned_ LOCKSTEP_GUARDED_BY(mutex_);
  ExchangeRecorder recorder_ LOCKSTEP_GUARDED_BY(mutex_);
  // For each exchange: what its collectives are for.
  std::vector<std::string> abouts_ LOCKSTEP_GUARDED_BY(mutex_);
  // The layout of each parameter's gradients, on any rank.
  std::vector<GradientLayout> layouts_ LOCKSTEP_GUARDED_BY(mutex_);
  // The exchanged parameters of which no rank has had a gradient, and what this rank has of them
  // in the pass under way.
  std::vector<std::size_t> unreached_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<GradientLayout> own_layouts_ LOCKSTEP_GUARDED_BY(mutex_);
  // To each gradient, on this rank, in one backward pass.
  std::vector<int> additions_ LOCKSTEP_GUARDED_BY(mutex_);
  // Got a gradient although the outputs of forward do not depend on them.
  std::vector<bool> used_elsewhere_ LOCKSTEP_GUARDED_BY(mutex_);

  // The weight of the gradients since the last exchange.
  GradientWeight weight_ LOCKSTEP_GUARDED_BY(mutex_);
  // The number of the last weighted pass of this model's loss.
  std::uint64_t own_pass_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::optional<LastGradient> last_gradient_ LOCKSTEP_GUARDED_BY(mutex_);

  // The backward pass under way.
  Phase phase_ LOCKSTEP_GUARDED_BY(mutex_) = Phase::kNone;
  // All ranks agree that this pass begins.
  Agreement agreement_ LOCKSTEP_GUARDED_BY(mutex_);
  GradientScale scale_ LOCKSTEP_GUARDED_BY(mutex_);
  ExchangeSchedule schedule_ LOCKSTEP_GUARDED_BY(mutex_);
  // Additions to each gradient in this pass.
  std::vector<int> expected_ LOCKSTEP_GUARDED_BY(mutex_);
  // In the first pass: which parameters, in order.
  std::vector<std::size_t> last_additions_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::inline internal
