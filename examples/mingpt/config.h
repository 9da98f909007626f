#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "examples/mingpt/optimizer.h"
#include "lockstep/amp/autocast.h"
#include "models/gpt.h"

namespace mingpt {

using lockstep::Precision;

/// "fp32", "bf16" or "fp16".
const char* name_of(Precision precision);

struct DataConfig {
  std::vector<std::string> path;  ///< Files and folders.
  std::int64_t block_size = 64;
  double train_split = 0.9;
  /// The part of the text that is used, from its beginning.
  double truncate = 1.0;
};

struct TrainerConfig {
  std::int64_t max_epochs = 1;
  /// Training ends after this many steps at the latest; 0: by max_epochs alone.
  std::int64_t max_steps = 300;
  std::int64_t batch_size = 16;               ///< Pieces a step, in each process.
  double grad_norm_clip = 1.0;                ///< 0: gradients are not clipped.
  std::string snapshot_path = "runs/mingpt";  ///< A folder.
  std::int64_t save_every = 1;                ///< Epochs from one snapshot to the next.
  std::int64_t save_every_steps = 100;        ///< Steps likewise, within an epoch; 0: none.
  std::int64_t log_every = 20;                ///< Steps from one line to the next.
  Precision precision = Precision::kFloat32;
  std::uint64_t seed = 0;  ///< Decides weights, order of pieces, dropout and generated text.
};

/// The sections of the tutorial's gpt2_train_cfg.yaml and its names.
struct Config {
  /// A small one, without dropout: the defaults are for a minute on a CPU.
  models::GptConfig gpt = {.embd_pdrop = 0, .resid_pdrop = 0, .attn_pdrop = 0};
  DataConfig data = {};
  TrainerConfig trainer = {};
  OptimizerConfig optimizer = {.learning_rate = 2e-3, .warmup_steps = 20};
};

/// Takes a JSON object of sections, {"trainer_config": {"max_epochs": 3}, …}; what it does not name
/// stays. `source` is what messages call it.
/// Errors: UsageError for text that is no such object, and naming the key for one that is not
/// known, with the nearest that is, or a value that it cannot have.
void apply_json(Config& config, const std::string& text, const std::string& source);

/// Takes "trainer_config.max_epochs=3". Values are JSON; what is not is text. Errors: as
/// apply_json.
void apply_override(Config& config, const std::string& assignment);

/// All keys with their values, a line each.
std::string describe(const Config& config);

}  // namespace mingpt
