#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <ATen/record_function.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/profile/internal/trace_file.h"
#include "lockstep/record/internal/trace_merge.h"
#include "lockstep/train/accelerator.h"
#include "lockstep/train/callbacks.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// All ranks are in each of them at once. The first waits for the late rank; the others are as
// short as a barrier is, and the shortest tells most.
void meet(const ProcessGroup& group) {
  constexpr int kMeetings = 5;
  if (group.world_size() == 1) return;
  for (int i = 0; i < kMeetings; ++i) {
    RECORD_USER_SCOPE(kClockSpan);
    group.barrier();
  }
}

void merge(const fs::path& path, int ranks) {
  std::vector<fs::path> there;
  std::string missing;
  for (int rank = 0; rank < ranks; ++rank) {
    const fs::path trace = trace_path(path, rank);
    std::error_code error;
    if (fs::exists(trace, error)) {
      there.push_back(trace);
    } else {
      missing += concat(missing.empty() ? "" : ", ", rank);
    }
  }
  merge_traces(path, there);
  if (missing.empty()) return;
  log(LogLevel::kWarning,
      concat("the timeline ", path.string(), " lacks the ranks ", missing,
             ", whose traces are on other machines; bring them to one folder and merge them: "
             "lockstep trace merge ",
             path.filename().string(), " FOLDER"));
}

}  // namespace

StepRange StepRange::parse(const std::string& text, const std::string& what) {
  const std::size_t colon = text.find(':');
  if (colon != std::string::npos) {
    const auto first = parse_number<std::int64_t>(std::string_view(text).substr(0, colon));
    const auto end = parse_number<std::int64_t>(std::string_view(text).substr(colon + 1));
    if (first && end && 1 <= *first && *first < *end) return {.first = *first, .end = *end};
  }
  throw UsageError(concat(what, " is '", text,
                          "'; give the first step, from 1, and the one after the last, as in 10:13 "
                          "for steps 10, 11 and 12"));
}

TraceCallback::TraceCallback(const TraceCallbackOptions& options)
    : options_(options), steps_(StepRange::parse(options.steps, "TraceCallback: steps")) {}

void TraceCallback::on_train_epoch_start(TrainerState& state) {
  begin_where_due(state);
}

void TraceCallback::on_train_batch_end(TrainerState& state) {
  if (trace_ && !steps_.contains(state.time.batches + 1)) finish(state);
  begin_where_due(state);
}

void TraceCallback::on_fit_end(TrainerState& state) {
  if (trace_) finish(state);
}

// Other ranks may be gone: each keeps what it has.
void TraceCallback::on_exception(TrainerState&, const std::exception&) {
  trace_.reset();
}

void TraceCallback::begin_where_due(TrainerState& state) {
  if (trace_ || state.is_dev_run || !steps_.contains(state.time.batches + 1)) return;
  const ProcessGroup& group = state.accelerator.process_group();
  path_ = fs::path(state.directory) / "traces" /
          concat("steps-", state.time.batches + 1, "-", steps_.end - 1, ".json");
  run_on_all(group, "begin to trace", [&] {
    std::error_code error;
    fs::create_directories(path_.parent_path(), error);
    if (error) {
      throw SystemError(concat("make ", path_.parent_path()), error.value(),
                        "choose a folder that this process may write");
    }
    trace_ = std::make_shared<Trace>(
        path_, TraceOptions{.process_group = group, .record_shapes = options_.record_shapes});
  });
  meet(group);
}

void TraceCallback::finish(TrainerState& state) {
  const ProcessGroup& group = state.accelerator.process_group();
  meet(group);
  const auto trace = std::exchange(trace_, nullptr);
  run_on_all(group, "write the trace", [&] { trace->finish(); });
  run_on_all(group, "merge the traces of all ranks", [&] {
    if (state.is_main()) merge(path_, group.world_size());
  });
}

}  // namespace lockstep
