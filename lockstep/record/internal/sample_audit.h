#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// An epoch according to the sample logs of a training run.
struct AuditedEpoch {
  std::int64_t epoch = 0;
  /// Samples that were given out, with repetitions.
  std::int64_t given = 0;
  std::int64_t twice = 0;
  /// Samples that were not given out, up to the epoch's last batch.
  std::int64_t missing = 0;
  bool is_complete = false;
  /// The program's loop left the epoch early.
  bool was_left = false;
};

/// A loader according to the sample logs.
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
  /// Problems as text; empty: every sample was trained exactly once.
  std::vector<std::string> problems;
};

/// Reads samples.rank<N>.jsonl of a folder, as SampleLog (data/internal/sample_log.h) writes them,
/// by loader. It follows the samples that the training run's last state contains: after a resume
/// from a snapshot, later samples of earlier runs are not counted. It ignores an incomplete line at
/// the end of a run, as a full disk leaves it.
/// Errors: SystemError for a folder without such files; CorruptFile with file and line.
std::vector<AuditedLoader> audit_samples(const std::filesystem::path& folder);

/// "loader 0: 1438 samples, 7 runs on 1 to 4 ranks …" and a line per epoch or problem.
std::string describe(const AuditedLoader& loader);

/// The same as JSON.
std::string to_json(const std::vector<AuditedLoader>& loaders);

}  // namespace lockstep::inline internal
