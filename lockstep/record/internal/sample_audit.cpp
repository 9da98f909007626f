#include "lockstep/record/internal/sample_audit.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"

namespace lockstep::inline internal {
namespace {

using nlohmann::json;

constexpr std::size_t kMostProblems = 10;  // of a loader

struct Cursor {
  std::int64_t epoch = 0;
  std::int64_t consumed = 0;
  auto operator<=>(const Cursor&) const = default;
};

// A batch of all ranks.
struct Batch {
  std::int64_t end = 0;
  int world_size = 0;
  bool is_last = false;
  std::set<int> ranks{};
  std::vector<std::int64_t> samples{};
};

struct Run {
  int world_size = 0;
  std::int64_t dataset_size = 0;
  std::int64_t seed = 0;
  std::int64_t least_of_epoch = 0;
  std::int64_t limit_batches = 0;
  std::map<int, Cursor> begins_of_rank{};
  std::set<Cursor> left{};
  std::map<Cursor, Batch> batches{};

  // A rank that was interrupted in a loop goes on before the others.
  Cursor begins() const {
    const auto first =
        std::ranges::min_element(begins_of_rank, {}, [](const auto& one) { return one.second; });
    return first == begins_of_rank.end() ? Cursor{} : first->second;
  }
};

// By loader, then by run.
using Runs = std::map<int, std::map<std::int64_t, Run>>;

struct Line {
  const std::filesystem::path& file;
  std::int64_t number;
  int rank;
};

[[noreturn]] void refuse(const Line& line, const std::string& why) {
  throw CorruptFile(concat("audit: ", line.file.string(), " line ", line.number, ": ", why,
                           "; only the training run may write these files"));
}

void take_batch(Run& run, const json& event, const Line& line) {
  const Cursor at{.epoch = event.at("epoch"), .consumed = event.at("begin")};
  Batch& batch = run.batches[at];
  const std::int64_t end = event.at("end");
  if (!batch.ranks.empty() && batch.end != end)
    refuse(line, "ranks have batches of different sizes");
  if (!batch.ranks.insert(line.rank).second) refuse(line, "the batch is logged twice");
  batch.end = end;
  batch.is_last = event.value("last", false);
  for (const std::int64_t sample : event.at("samples")) batch.samples.push_back(sample);
}

void take_event(Runs& runs, const json& event, const Line& line) {
  const std::int64_t number = event.at("run");
  Run& run = runs[event.at("loader").get<int>()][number];
  const std::string& what = event.at("event").get_ref<const std::string&>();
  if (what == "begin") {
    const int world_size = event.at("world_size");
    if (run.world_size != 0 && run.world_size != world_size) {
      refuse(line, "ranks of one run have different world sizes");
    }
    run.world_size = world_size;
    run.dataset_size = event.at("dataset_size");
    run.seed = event.at("seed");
    run.least_of_epoch = event.at("least_of_epoch");
    run.limit_batches = event.value("limit_batches", 0);
  } else if (what == "go_to") {
    // Of all that it had before nothing counts.
    const Cursor to{.epoch = event.at("epoch"), .consumed = event.at("consumed")};
    run.begins_of_rank[line.rank] = to;
  } else if (what == "leave") {
    run.left.insert({.epoch = event.at("epoch"), .consumed = event.at("consumed")});
  } else if (what == "batch") {
    take_batch(run, event, line);
  } else {
    refuse(line, concat("an event '", what, "'"));
  }
}

void read_file(Runs& runs, const std::filesystem::path& path, int rank) {
  std::ifstream file(path);
  std::string text;
  std::int64_t cut_off = 0;  // the number of such a line
  for (std::int64_t number = 1; std::getline(file, text); ++number) {
    const Line line{.file = path, .number = number, .rank = rank};
    const json event = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (event.is_discarded()) {
      if (cut_off == 0) cut_off = number;
      continue;
    }
    try {
      // The run that follows has ended it.
      if (cut_off != 0 && event.at("event") != "begin") {
        refuse({.file = path, .number = cut_off, .rank = rank}, "it is no JSON");
      }
      cut_off = 0;
      take_event(runs, event, line);
    } catch (const json::exception& error) {
      refuse(line, error.what());
    }
  }
}

Runs read_folder(const std::filesystem::path& folder) {
  Runs runs;
  bool has_some = false;
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    int rank = 0;
    char end = 0;
    if (std::sscanf(name.c_str(), "samples.rank%d.json%c", &rank, &end) != 2 || end != 'l')
      continue;
    has_some = true;
    read_file(runs, entries->path(), rank);
  }
  if (error) {
    throw SystemError(concat("audit: read ", folder.string()), error.value(),
                      "name the sample_log_directory of the Accelerator, or data/ of a Trainer");
  }
  if (!has_some) {
    throw UsageError(concat("audit: ", folder.string(), " has no samples.rank0.jsonl; name the ",
                            "sample_log_directory of the Accelerator, or data/ of a Trainer"));
  }
  return runs;
}

class Auditor {
 public:
  Auditor(int number, const std::map<std::int64_t, Run>& runs) {
    result_.number = number;
    for (const auto& [id, run] : runs) take(id, run);
    std::map<std::int64_t, std::map<Cursor, Batch>> by_epoch;
    for (auto& [at, batch] : lineage_) by_epoch[at.epoch].emplace(at, std::move(batch));
    for (const auto& [epoch, batches] : by_epoch)
      judge(epoch, batches, epoch == by_epoch.rbegin()->first);
  }

  AuditedLoader take_result() { return std::move(result_); }

 private:
  void say(const std::string& problem) {
    if (result_.problems.size() < kMostProblems) result_.problems.push_back(problem);
  }

  void take(std::int64_t id, const Run& run) {
    ++result_.runs;
    if (result_.runs == 1) {
      result_.dataset_size = run.dataset_size;
      result_.seed = run.seed;
      result_.least_ranks = result_.most_ranks = run.world_size;
      least_of_epoch_ = run.least_of_epoch;
    }
    least_of_epoch_ = std::min(least_of_epoch_, run.least_of_epoch);
    limit_batches_.insert(run.limit_batches);
    if (run.dataset_size != result_.dataset_size) {
      say(concat("run ", id, " has a dataset of ", run.dataset_size, " samples, the first ",
                 result_.dataset_size));
    }
    result_.least_ranks = std::min(result_.least_ranks, run.world_size);
    result_.most_ranks = std::max(result_.most_ranks, run.world_size);
    // It was ended before it could say where it goes on.
    if (run.batches.empty() && run.begins_of_rank.empty()) return;
    const Cursor begins = run.begins();
    const auto given_up = lineage_.lower_bound(begins);
    result_.replayed_batches += std::distance(given_up, lineage_.end());
    lineage_.erase(given_up, lineage_.end());
    std::erase_if(left_, [&](const Cursor& at) { return at >= begins; });
    left_.insert(run.left.begin(), run.left.end());
    if (!lineage_.empty()) {
      const auto& [at, last] = *lineage_.rbegin();
      if (at.epoch == begins.epoch && last.end > begins.consumed) {
        say(concat("run ", id, " resumes in the middle of a batch, at sample ", begins.consumed,
                   " of epoch ", begins.epoch));
      }
    }
    for (const auto& [at, batch] : run.batches) {
      if (at < begins) continue;
      lineage_[at] = batch;
      lineage_[at].world_size = run.world_size;
    }
  }

  void judge(std::int64_t epoch, const std::map<Cursor, Batch>& batches, bool is_last) {
    AuditedEpoch judged{.epoch = epoch};
    std::vector<int> times(static_cast<std::size_t>(result_.dataset_size));
    std::int64_t end = 0;
    bool has_ended = false;
    for (const auto& [at, batch] : batches) {
      const std::string where =
          concat("epoch ", epoch, ", samples ", at.consumed, " to ", batch.end, " of its order");
      if (at.consumed != end) say(concat(where, ": the previous batch ends at ", end));
      if (has_ended) say(concat(where, ": the epoch ended before these samples, but continued"));
      has_ended = batch.is_last;
      end = batch.end;
      // What ranks were given last, before they were killed, is no state's.
      const bool is_newest = is_last && at == batches.rbegin()->first;
      if (static_cast<int>(batch.ranks.size()) < batch.world_size && !is_newest) {
        say(concat(where, ": only ", batch.ranks.size(), " of ", batch.world_size,
                   " ranks logged their samples"));
      }
      for (const std::int64_t sample : batch.samples) {
        ++judged.given;
        if (sample < 0 || sample >= result_.dataset_size) {
          say(concat(where, ": the dataset has no sample ", sample));
        } else if (++times[static_cast<std::size_t>(sample)] == 2) {
          ++judged.twice;
          say(concat(where, ": sample ", sample, " was already in an earlier batch"));
        }
      }
    }
    judged.was_left = left_.contains({.epoch = epoch, .consumed = end});
    const bool is_whole = end >= least_of_epoch_ || has_as_many_as_a_limit(batches.size());
    judged.is_complete = is_whole || judged.was_left || !is_last;
    if (!is_whole && judged.is_complete && !judged.was_left) {
      say(concat("epoch ", epoch, " ends after ", end, " of ", result_.dataset_size,
                 " samples, but training continued in another epoch"));
    }
    judged.missing = end - judged.given + judged.twice;
    if (judged.missing > 0 && judged.is_complete) {
      say(concat("epoch ", epoch, ": ",
                 count_text(static_cast<std::size_t>(judged.missing), "sample"), " of ", end,
                 " missing"));
    }
    result_.epochs.push_back(judged);
  }

  bool has_as_many_as_a_limit(std::size_t batches) const {
    return limit_batches_.contains(static_cast<std::int64_t>(batches));
  }

  AuditedLoader result_;
  /// The least that any run says.
  std::int64_t least_of_epoch_ = 0;
  /// Of all runs.
  std::set<std::int64_t> limit_batches_;
  std::map<Cursor, Batch> lineage_;
  std::set<Cursor> left_;
};

}  // namespace

std::vector<AuditedLoader> audit_samples(const std::filesystem::path& folder) {
  std::vector<AuditedLoader> loaders;
  for (const auto& [number, runs] : read_folder(folder)) {
    loaders.push_back(Auditor(number, runs).take_result());
  }
  return loaders;
}

std::string describe(const AuditedLoader& loader) {
  std::string text =
      concat("loader ", loader.number, ": ", loader.dataset_size, " samples, seed ", loader.seed,
             ", ", count_text(static_cast<std::size_t>(loader.runs), "run"), " on ",
             loader.least_ranks == loader.most_ranks
                 ? count_text(static_cast<std::size_t>(loader.most_ranks), "rank")
                 : concat(loader.least_ranks, " to ", loader.most_ranks, " ranks"),
             ", ", loader.replayed_batches, " replayed ",
             loader.replayed_batches == 1 ? "batch\n" : "batches\n");
  for (const AuditedEpoch& epoch : loader.epochs) {
    const bool is_good = epoch.twice == 0 && epoch.missing == 0;
    text += concat("  epoch ", epoch.epoch, ": ");
    if (epoch.is_complete) {
      const bool is_whole = epoch.given == loader.dataset_size;
      text +=
          is_good
              ? concat(epoch.given, is_whole ? std::string() : concat(" of ", loader.dataset_size),
                       " samples, each once", epoch.was_left ? ", as the loop was left\n" : "\n")
              : concat(epoch.given, " samples, ", epoch.twice, " of them twice, ", epoch.missing,
                       " missing\n");
    } else {
      text += concat(epoch.given, " of ", loader.dataset_size, " samples so far, ",
                     epoch.twice == 0 ? std::string("none") : concat(epoch.twice), " twice\n");
    }
  }
  for (const std::string& problem : loader.problems) text += concat("  problem: ", problem, "\n");
  return text;
}

std::string to_json(const std::vector<AuditedLoader>& loaders) {
  json all = json::array();
  for (const AuditedLoader& loader : loaders) {
    json epochs = json::array();
    for (const AuditedEpoch& epoch : loader.epochs) {
      epochs.push_back({{"epoch", epoch.epoch},
                        {"given", epoch.given},
                        {"twice", epoch.twice},
                        {"missing", epoch.missing},
                        {"complete", epoch.is_complete},
                        {"left", epoch.was_left}});
    }
    all.push_back({{"loader", loader.number},
                   {"dataset_size", loader.dataset_size},
                   {"seed", loader.seed},
                   {"runs", loader.runs},
                   {"least_ranks", loader.least_ranks},
                   {"most_ranks", loader.most_ranks},
                   {"batches_made_again", loader.replayed_batches},
                   {"epochs", epochs},
                   {"problems", loader.problems}});
  }
  return all.dump(2);
}

}  // namespace lockstep::inline internal
