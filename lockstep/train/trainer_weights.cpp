#include <filesystem>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/snapshot/snapshot.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "lockstep/snapshot/state_dict.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/trainer_loop.h"

namespace lockstep {
namespace {

// Damaged snapshots are passed over.
TensorDict last_weights(const TrainerOptions& options) {
  const std::filesystem::path folder = accelerator_options(options).directory;
  if (auto snapshot = SnapshotDirectory(folder).read_latest()) return std::move(snapshot->model);
  throw UsageError(concat("Trainer: ", folder.string(),
                          " has no snapshot; train first, or name a file in ckpt_path"));
}

std::string best_weights(const TrainerOptions& options,
                         const std::vector<std::shared_ptr<Callback>>& callbacks) {
  for (const auto& callback : callbacks) {
    const auto* const checkpoint = dynamic_cast<const ModelCheckpoint*>(callback.get());
    if (!checkpoint) continue;
    const std::string path = checkpoint->best_model_path(options.directory);
    if (!path.empty()) return path;
    throw UsageError(concat("Trainer: ", options.directory,
                            " has no best weights yet; train first, or name a file in ckpt_path"));
  }
  throw UsageError(
      "Trainer: ckpt_path is 'best', but there is no ModelCheckpoint; add one, or name a file");
}

}  // namespace

void internal::load_weights(torch::nn::Module& module, const EvaluateOptions& evaluated,
                            const TrainerOptions& options,
                            const std::vector<std::shared_ptr<Callback>>& callbacks,
                            const Accelerator& accelerator) {
  if (evaluated.ckpt_path.empty()) return;
  run_on_all(accelerator.process_group(), "load weights", [&] {
    const std::string& asked = evaluated.ckpt_path;
    const std::string path = asked == "best" ? best_weights(options, callbacks) : asked;
    load_state_dict(module, asked == "last" ? last_weights(options) : read_state_dict(path), path);
  });
}

}  // namespace lockstep
