#include "tools/replay/replay_plan.h"

#include <algorithm>
#include <iterator>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/snapshot/internal/snapshot_list.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

std::optional<SnapshotName> newest_before(const fs::path& folder, std::int64_t step) {
  std::optional<SnapshotName> newest;
  for (const SnapshotName& name : list_snapshots(folder).present) {
    if (name.step < step && (!newest || name.step > newest->step)) newest = name;
  }
  return newest;
}

void check_is_there(const fs::path& path, const char* what) {
  std::error_code error;
  if (fs::exists(path, error)) return;
  throw UsageError(
      concat("replay: ", what, " of the run, ", path.string(), ", does not exist; restore it"));
}

// Which are nearest to one that is not logged.
std::string steps_beside(const LoggedHashes& logged, std::int64_t step) {
  if (logged.steps.empty()) return "it has none; train further";
  const auto after = logged.steps.upper_bound(step);
  if (after == logged.steps.begin()) return concat("its first is ", after->first, "; choose it");
  const std::int64_t before = std::prev(after)->first;
  if (after == logged.steps.end()) return concat("its last is ", before, "; choose it");
  return concat("choose ", before, " or ", after->first);
}

// Ends a verdict, if the kernels of the run may round differently.
std::string other_kernels(const ReplayPlan& plan, const LoggedHashes& made) {
  const std::string& logged = plan.run.kernels;
  const std::string& own = made.runs.back().kernels;
  if (logged.empty() || logged == own) return "";
  return concat("; the run had ", words_missing_in(own, logged), ", this replay ",
                words_missing_in(logged, own));
}

std::string beginning_of(const ReplayPlan& plan) {
  if (!plan.snapshot) return "from the beginning of the run";
  return concat("from ", plan.snapshot->file_name());
}

}  // namespace

ReplayPlan plan_replay(const fs::path& run, std::int64_t step) {
  ReplayPlan plan{.step = step, .logged = read_hashes(run), .run = {}, .snapshot = {}};
  const auto made = plan.logged.steps.find(step);
  if (made == plan.logged.steps.end()) {
    throw UsageError(concat("replay: step ", step, " is not in the log of hashes; ",
                            steps_beside(plan.logged, step)));
  }
  plan.run = plan.logged.runs.at(made->second.run);
  check_is_there(plan.run.program.path, "the program");
  check_is_there(plan.run.program.working_directory, "the working directory");
  plan.snapshot = newest_before(run / "snapshots", step);
  return plan;
}

void make_replay_folder(const ReplayPlan& plan, const fs::path& run, const fs::path& folder) {
  const fs::path target = folder / "snapshots";
  std::error_code error;
  fs::create_directories(target, error);
  const auto link = [&](const fs::path& from, const fs::path& to) {
    if (!error) fs::create_symlink(fs::absolute(from), to, error);
  };
  if (plan.snapshot) {
    const std::string name = plan.snapshot->file_name();
    const fs::path source = run / "snapshots" / name;
    if (plan.snapshot->sharded) {
      if (!error) fs::create_directory(target / name, error);
      for (const auto& file : fs::directory_iterator(source)) {
        link(file.path(), target / name / file.path().filename());
      }
    } else {
      link(source, target / name);
    }
  }
  if (error) {
    throw SystemError(concat("replay: make ", target.string()), error.value(),
                      "set TMPDIR to a folder that you may write");
  }
}

ReplayVerdict judge_replay(const ReplayPlan& plan, const LoggedHashes& made, int ranks) {
  const auto last = made.steps.find(plan.step);
  if (last == made.steps.end()) {
    throw Error(concat("replay: the program ended before step ", plan.step, " in ",
                       plan.run.directory, "; see its messages"));
  }
  const std::string where =
      concat(" on ", count_text(static_cast<std::size_t>(ranks), "rank"), ", ", beginning_of(plan));
  if (const auto difference = first_difference(plan.logged, made)) {
    return {
        .agrees = false,
        .line = concat("replay: step ", difference->step, " differs from the log in ",
                       difference->differing, " of ", count_text(difference->tensors, "tensor"),
                       " (first '", difference->tensor, "')", where, other_kernels(plan, made))};
  }
  return {.agrees = true,
          .line = concat("replay: step ", plan.step, " matches the log bit for bit: ",
                         count_text(made.steps.size(), "logged step"), ", ",
                         count_text(last->second.tensors.size(), "tensor"), where)};
}

}  // namespace lockstep::inline internal
