#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/train/callback.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

struct EvaluateOptions {
  /// Whose weights: "last" of the training's snapshots in default_root_dir, "best" that a
  /// ModelCheckpoint has kept there, or a file of a snapshot or of a state dict, Python's too.
  /// Empty: as configure_model makes them.
  std::string ckpt_path = "last";
};

/// Loads them into the module of every rank. Collective. Errors: UsageError where there are none,
/// or of another module; as read_state_dict; PeerFailed.
void load_weights(torch::nn::Module& module, const EvaluateOptions& evaluated,
                  const TrainerOptions& options,
                  const std::vector<std::shared_ptr<Callback>>& callbacks,
                  const Accelerator& accelerator);

}  // namespace lockstep
