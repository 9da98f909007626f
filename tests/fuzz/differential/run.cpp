#include "tests/fuzz/differential/run.h"

#include <cstring>
#include <string_view>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "lockstep/base/internal/concat.h"
#include "tests/fuzz/differential/oracle.h"
#include "tests/fuzz/differential/trainee.h"

namespace lockstep::differential {
namespace {

// The thread sanitizer sees none of libgomp's barriers, and races between what they keep apart.
#ifdef __SANITIZE_THREAD__
constexpr bool kSeesComputeThreads = false;
#else
constexpr bool kSeesComputeThreads = true;
#endif

class Session {
 public:
  Session(const Plan& plan, const ProcessGroup& group)
      : plan_(plan), group_(group), rank_(group.rank()), oracle_(plan), trainee_(plan, group) {}

  Failure run() {
    plan_.joins ? run_joined() : run_steps();
    return failure_;
  }

 private:
  void run_steps() {
    for (int step = 0; step < static_cast<int>(plan_.steps.size()); ++step) {
      for (int pass = 0; pass < passes(step); ++pass) run_pass(step, pass, {});
      finish_step(step);
    }
  }

  void run_joined() {
    std::vector<at::Tensor> own;
    for (int step = 0; step < static_cast<int>(plan_.steps.size()); ++step) {
      for (int pass = 0; pass < passes(step); ++pass) {
        if (!plan_.steps[step].passes[pass].has_data[rank_]) continue;
        own.push_back(make_input(plan_, {step, pass, rank_, 0}));
      }
    }
    auto batches =
        trainee_.wrapped().join(own, {.gradient_accumulation_steps = plan_.accumulation_steps});
    int step = 0;
    int pass = 0;
    for (const at::Tensor& batch : batches) {
      {
        const NoSyncGuard accumulation = batches.accumulate();
        run_pass(step, pass, batch);
      }
      if (++pass < passes(step)) continue;
      finish_step(step++);
      pass = 0;
    }
    if (step != static_cast<int>(plan_.steps.size()) && !failure_) {
      failure_ = {"join", concat("ended after ", step, " steps")};
    }
  }

  int passes(int step) const { return static_cast<int>(plan_.steps[step].passes.size()); }

  void run_pass(int step, int pass, const at::Tensor& input) {
    const std::string where = concat("step ", step, ", pass ", pass);
    trainee_.run_pass(step, pass, input);
    oracle_.run_pass(step, pass);
    const PassPlan& planned = plan_.steps[step].passes[pass];
    if (planned.takes_gradients) compare_taken(where);
    const std::vector<at::Tensor> gradients = trainee_.gradients_after(planned);
    compare_gradients(plan_, oracle_, rank_, planned.exchanges, gradients, where, failure_);
    compare_buffers(where);
  }

  void compare_taken(const std::string& where) {
    std::vector<at::Tensor> actual;
    std::vector<at::Tensor> expected;
    for (std::size_t i = 0; i < plan_.parameters.size(); ++i) {
      if (trainee_.taken()[i].defined() != oracle_.taken(rank_)[i].defined()) {
        failure_ = {where, concat("autograd::grad of p", i, " is missing")};
      }
      if (!trainee_.taken()[i].defined() || !oracle_.taken(rank_)[i].defined()) continue;
      actual.push_back(trainee_.taken()[i]);
      expected.push_back(oracle_.taken(rank_)[i]);
    }
    compare_tensors("autograd::grad", actual, expected, 1e-5, where, failure_);
  }

  void compare_buffers(const std::string& where) {
    const double tolerance = plan_.has(OpKind::kBatchNorm) ? 1e-9 : 0;
    compare_tensors("buffer", trainee_.buffers(), oracle_.model(rank_).buffers(), tolerance, where,
                    failure_);
  }

  void finish_step(int step) {
    const std::string where = concat("step ", step);
    const bool has_exchanged = plan_.steps[step].passes.back().reaches_nothing == 0;
    if (plan_.options.gradient_norm && has_exchanged) {
      compare_norms("gradient_norm", trainee_.gradient_norm(),
                    oracle_.norm(rank_, Oracle::Of::kExchanged), 1e-5, where, failure_);
    }
    if (plan_.clip != ClipPlan::kNone) clip(where);
    trainee_.update();
    oracle_.update();
    compare_tensors("parameter", detached(trainee_.parameters()),
                    detached(oracle_.model(rank_).parameters), 0, where, failure_);
    compare_ranks(where);
    if ((plan_.steps[step].evaluates >> rank_ & 1) != 0) trainee_.evaluate(step);
  }

  void clip(const std::string& where) {
    const double norm = trainee_.clip();
    const double expected = oracle_.clip();
    const bool is_value = plan_.clip == ClipPlan::kValue;
    if (!is_value) compare_norms("clipped norm", norm, expected, 1e-2, where, failure_);
    std::vector<at::Tensor> actual_gradients;
    std::vector<at::Tensor> expected_gradients;
    const std::vector<at::Tensor> gradients = trainee_.gradients();
    for (std::size_t i = 0; i < plan_.parameters.size(); ++i) {
      const at::Tensor& gradient = gradients[i];
      const at::Tensor must_be = oracle_.gradients(rank_)[i];
      if (!gradient.defined() || !must_be.defined()) continue;
      actual_gradients.push_back(gradient.detach());
      expected_gradients.push_back(must_be);
      oracle_.adopt(rank_, i,
                    gradient.is_sparse() ? gradient.detach().to_dense() : gradient.detach(),
                    /*is_average=*/true);
    }
    compare_tensors("clipped gradient", actual_gradients, expected_gradients, is_value ? 0 : 1e-2,
                    where, failure_);
  }

  static std::vector<at::Tensor> detached(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> result;
    for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach());
    return result;
  }

  // The oracle follows this rank; that all ranks have the same bits is seen here.
  void compare_ranks(const std::string& where) {
    if (!plan_.keeps_replicas_equal()) return;
    std::uint64_t hash = 0;
    const auto add = [&](const at::Tensor& tensor) {
      const at::Tensor flat = tensor.detach().to_dense().contiguous();
      const std::string_view bytes(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
      hash = hash * 31 + std::hash<std::string_view>()(bytes);
    };
    for (std::size_t i = 0; i < plan_.parameters.size(); ++i) {
      if (plan_.parameters[i].is_ignored) continue;
      add(trainee_.parameters()[i]);
      if (trainee_.parameters()[i].grad().defined()) add(trainee_.parameters()[i].grad());
    }
    const at::Tensor own = at::full({1}, static_cast<std::int64_t>(hash), at::kLong);
    const at::Tensor all = at::empty({group_.world_size()}, at::kLong);
    group_.all_gather_into_tensor(all, own);
    if (failure_ || (all == own).all().item<bool>()) return;
    failure_ = {where, "ranks hold different bits"};
  }

  const Plan& plan_;
  ProcessGroup group_;
  int rank_;
  Failure failure_;
  Oracle oracle_;
  Trainee trainee_;
};

}  // namespace

Failure run(const Plan& plan, const ProcessGroup& group) {
  at::set_num_threads(kSeesComputeThreads ? plan.threads : 1);
  Session session(plan, group);
  return session.run();
}

}  // namespace lockstep::differential
