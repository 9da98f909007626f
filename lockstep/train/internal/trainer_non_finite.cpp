// How a TrainerLoop ends a training whose numbers are not finite any more.
#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/train/trainer_loop.h"

namespace lockstep {
namespace {

constexpr const char* kCure =
    "lower the learning rate, clip gradients, or skip such steps: non_finite kSkip "
    "(--non-finite=skip)";

bool goes_on(const TrainerOptions& options) {
  return options.non_finite == NonFinite::kReport || options.non_finite == NonFinite::kSkip;
}

}  // namespace

// All ranks have the same mean.
void TrainerLoop::refuse_non_finite(const Metrics& metrics) const {
  const double* const loss = find_metric(metrics, kTrainLoss);
  if (loss == nullptr || std::isfinite(*loss) || goes_on(options_)) return;
  const auto firsts = gather_rows(accelerator_.process_group(), {first_bad_step_});
  int rank = -1;
  std::int64_t step = -1;
  for (int i = 0; i < static_cast<int>(firsts.size()); ++i) {
    const std::int64_t first = firsts[static_cast<std::size_t>(i)][0];
    if (first >= 0 && (step < 0 || first < step)) std::tie(rank, step) = std::tuple(i, first);
  }
  throw Error(concat("the training's loss is not finite",
                     step < 0 ? concat(" by step ", state_.time.batches)
                              : concat(" on rank ", rank, " in step ", step),
                     "; the newest snapshot is older; ", kCure));
}

// A run that resumed from a snapshot of such parameters could not train. All ranks find the same.
void TrainerLoop::refuse_non_finite_parameters() const {
  PreparedReplica& replica = *accelerator_.state_->replicas.front();
  std::vector<std::string> names;
  accelerator_.run_on_survivors([&] { names = replica.names_not_finite(replica.parameters()); });
  if (names.empty()) return;
  const std::string what =
      concat("the parameter ", names.front(), " is not finite after step ", state_.time.batches);
  if (!goes_on(options_)) {
    throw Error(concat(what, ", so no snapshot is saved; the newest is older; ", kCure));
  }
  if (state_.is_main()) log(LogLevel::kWarning, concat("Trainer: ", what));
}

}  // namespace lockstep
