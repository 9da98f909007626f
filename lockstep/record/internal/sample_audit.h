#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// What the logs of samples of a training say of an epoch.
struct AuditedEpoch {
  std::int64_t epoch = 0;
  /// That were given out, each counted as often as it was.
  std::int64_t given = 0;
  std::int64_t twice = 0;
  /// Up to the epoch's last batch.
  std::int64_t missing = 0;
  bool is_complete = false;
  /// The program's loop left it early.
  bool was_left = false;
};

struct AuditedLoader {
  int number = 0;
  std::int64_t dataset_size = 0;
  std::int64_t seed = 0;
  std::int64_t runs = 0;
  int least_ranks = 0;
  int most_ranks = 0;
  /// Batches that a later run trained again, because it resumed before them.
  std::int64_t replayed_batches = 0;
  std::vector<AuditedEpoch> epochs;
  /// In words; none: every sample was trained exactly once.
  std::vector<std::string> problems;
};

/// Reads samples.rank<N>.jsonl of a folder, as SampleLog (data/internal/sample_log.h) writes them,
/// and follows what the training's last state has been given: where a run goes on from a snapshot,
/// what runs before it were given later does not count. By loader. Errors: SystemError for a folder
/// without such files; CorruptFile naming file and line; a line that is cut off, as by a full disk,
/// at the end of a run is passed over.
std::vector<AuditedLoader> audit_samples(const std::filesystem::path& folder);

/// "loader 0: 1438 samples, 7 runs on 1 to 4 ranks …" and a line for each epoch or problem.
std::string describe(const AuditedLoader& loader);

/// The same as JSON.
std::string to_json(const std::vector<AuditedLoader>& loaders);

}  // namespace lockstep::inline internal
