#include "examples/mingpt/model_file.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/snapshot/snapshot.h"
#include "lockstep/snapshot/state_dict.h"

namespace mingpt {
namespace {

namespace fs = std::filesystem;
using lockstep::concat;
using lockstep::SnapshotName;
using lockstep::UsageError;

constexpr const char* kShape = "mingpt.shape";
constexpr const char* kCharacters = "mingpt.characters";

at::Tensor shape_of(const models::GptConfig& config) {
  return at::tensor({config.n_layer, config.n_head, config.n_embd, config.block_size}, at::kLong);
}

/// Newest first.
std::vector<SnapshotName> snapshots_in(const fs::path& folder) {
  std::vector<SnapshotName> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (const auto name = SnapshotName::parse(entry->path().filename().native())) {
      names.push_back(*name);
    }
  }
  std::sort(names.rbegin(), names.rend());
  return names;
}

TrainedModel restore(const lockstep::Snapshot& snapshot, const fs::path& path) {
  const std::string source = path.string();
  const at::Tensor shape = entry_of(snapshot.extra, kShape, source);
  const Vocabulary vocabulary(entry_of(snapshot.extra, kCharacters, source));
  if (shape.numel() != 4) throw UsageError(concat(source, ": no snapshot of mingpt"));
  const auto* sizes = shape.const_data_ptr<std::int64_t>();
  models::Gpt gpt(models::GptConfig{.n_layer = sizes[0],
                                    .n_head = sizes[1],
                                    .n_embd = sizes[2],
                                    .vocab_size = vocabulary.size(),
                                    .block_size = sizes[3]});
  lockstep::load_state_dict(*gpt, snapshot.model, source);
  return {gpt, vocabulary, path};
}

}  // namespace

lockstep::TensorDict model_description(const models::GptConfig& config,
                                       const Vocabulary& vocabulary) {
  return {{kShape, shape_of(config)}, {kCharacters, vocabulary.characters()}};
}

void check_same_model(const lockstep::TensorDict& extra, const models::GptConfig& config,
                      const Vocabulary& vocabulary, const std::string& source) {
  const auto require = [&](const char* name, const at::Tensor& ours, const char* what) {
    if (!at::equal(entry_of(extra, name, source), ours)) {
      throw UsageError(concat("resume from ", source, ": it is of ", what,
                              "; give what it was trained with, or another "
                              "trainer_config.snapshot_path"));
    }
  };
  require(kShape, shape_of(config), "a model of another shape");
  require(kCharacters, vocabulary.characters(), "a text of other characters");
}

TrainedModel read_model(const fs::path& path) {
  if (fs::is_regular_file(path)) return restore(lockstep::load_snapshot(path), path);
  for (const SnapshotName& name : snapshots_in(path)) {
    const fs::path file = path / name.file_name();
    try {
      return restore(lockstep::load_snapshot(file), file);
    } catch (const lockstep::CorruptFile& error) {
      lockstep::log(lockstep::LogLevel::kWarning,
                    concat("skipped a damaged snapshot: ", error.what()));
    }
  }
  throw UsageError(concat("generate text: no whole snapshot in ", path,
                          "; train first, or give trainer_config.snapshot_path=FOLDER"));
}

at::Tensor entry_of(const lockstep::TensorDict& values, const std::string& name,
                    const std::string& source) {
  for (const auto& [key, tensor] : values) {
    if (key == name) return tensor;
  }
  throw UsageError(concat(source, ": no snapshot of mingpt, it has no ", name));
}

}  // namespace mingpt
