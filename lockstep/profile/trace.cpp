#include "lockstep/profile/trace.h"

#include <exception>
#include <set>
#include <utility>

#include <ATen/Context.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/os/files/atomic_file.h"
#include "lockstep/os/files/readable_file.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/profile/internal/trace_file.h"

namespace lockstep {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

}  // namespace

Trace::Trace(const std::filesystem::path& path, const TraceOptions& options) : path_(path) {
  if (const ProcessGroup group = group_or_default(options.process_group)) {
    path_ = trace_path(path, group.rank());
    process_name_ = concat("rank ", group.rank());
  }
  if (torch::profiler::impl::profilerEnabled()) {
    throw UsageError(
        concat("Trace ", path_.string(), ": a profiler runs already; end it first, one at a time"));
  }
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO,
                                                     options.record_shapes);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (at::hasCUDA()) activities.insert(ActivityType::CUDA);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  is_running_ = true;
}

Trace::~Trace() {
  try {
    finish();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, error.what());
  }
}

void Trace::finish() {
  if (!std::exchange(is_running_, false)) return;
  const auto result = profiler::disableProfiler();
  // Kineto says of no error in writing, and would leave half a file.
  const TemporaryDirectory directory(std::filesystem::absolute(path_).parent_path(), ".trace-");
  const std::filesystem::path raw = directory.path() / "trace.json";
  result->save(raw.string());
  std::string text = ReadableFile(raw).text();
  if (!process_name_.empty()) text = with_process_name(std::move(text), process_name_);
  AtomicFile file(path_);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace lockstep
