#include "launcher/status/job_metrics.h"

#include <initializer_list>
#include <iomanip>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

namespace lockstep::inline internal {
namespace {

using State = JobStatus::State;
using Labels = std::initializer_list<std::pair<const char*, std::string>>;

// An id need not be UTF-8, which the text has to be.
std::string valid_utf8(const std::string& text) {
  using nlohmann::json;
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace))
      .get<std::string>();
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : valid_utf8(text)) {
    if (c == '\\' || c == '"') result += '\\';
    result += c == '\n' ? "\\n" : std::string(1, c);
  }
  return result;
}

class MetricsText {
 public:
  // The metrics that follow, until the next; their names are `name`, with what the type adds.
  void family(const char* name, const char* type, const char* unit, const char* help) {
    name_ = name;
    text_ << "# TYPE " << name << " " << type << "\n";
    if (*unit != '\0') text_ << "# UNIT " << name << " " << unit << "\n";
    text_ << "# HELP " << name << " " << help << "\n";
  }
  template <class Value>
  void sample(const char* suffix, const Labels& labels, Value value) {
    text_ << name_ << suffix;
    const char* separator = "{";
    for (const auto& [label, content] : labels) {
      text_ << separator << label << "=\"" << escaped(content) << "\"";
      separator = ",";
    }
    // Milliseconds of a time in seconds since 1970, all bytes of a size.
    text_ << (labels.size() > 0 ? "} " : " ") << std::fixed << std::setprecision(3) << value
          << "\n";
  }
  template <class Value>
  void gauge(const char* name, const char* help, Value value) {
    family(name, "gauge", "", help);
    sample("", {}, value);
  }
  std::string end() {
    text_ << "# EOF\n";
    return text_.str();
  }

 private:
  std::ostringstream text_;
  const char* name_ = "";
};

void add_workers(MetricsText& metrics, const JobStatus& status) {
  const auto of_each = [&](const char* suffix, const auto& value) {
    for (const WorkerStatus& worker : status.workers) {
      metrics.sample(suffix,
                     {{"rank", std::to_string(worker.rank)},
                      {"local_rank", std::to_string(worker.local_rank)}},
                     value(worker));
    }
  };
  metrics.family("lockstep_worker_running", "gauge", "", "1 while the worker's process runs.");
  of_each("",
          [](const WorkerStatus& w) { return w.state == WorkerStatus::State::kRunning ? 1 : 0; });
  metrics.family("lockstep_worker_cpu_seconds", "counter", "seconds",
                 "Processor time of the worker's process; from 0 in each generation.");
  of_each("_total", [](const WorkerStatus& w) { return w.cpu_seconds; });
  metrics.family("lockstep_worker_resident_bytes", "gauge", "bytes",
                 "Memory of the worker's process.");
  of_each("", [](const WorkerStatus& w) { return w.resident_bytes; });
}

}  // namespace

std::string metrics_of(const JobStatus& status, double now) {
  MetricsText metrics;
  metrics.family("lockstep_job", "info", "", "The job.");
  metrics.sample("_info",
                 {{"job", status.job},
                  {"host", status.host},
                  {"program", status.program},
                  {"role", status.role}},
                 1);
  metrics.family("lockstep_state", "stateset", "", "State of the job.");
  for (const State state :
       {State::kGathering, State::kRunning, State::kStopping, State::kSucceeded, State::kFailed}) {
    metrics.sample("", {{"lockstep_state", name_of(state)}}, state == status.state ? 1 : 0);
  }
  metrics.gauge("lockstep_healthy", "1 while /healthz answers with 200.",
                status.is_healthy ? 1 : 0);
  metrics.family("lockstep_start_time_seconds", "gauge", "seconds",
                 "When the launcher was started, in seconds since 1970.");
  metrics.sample("", {}, now - status.seconds);
  metrics.gauge("lockstep_generation", "The generation that runs or ran last.", status.generation);
  metrics.family("lockstep_restarts", "counter", "", "Restarts after failures, of the whole job.");
  metrics.sample("_total", {}, status.restarts);
  metrics.gauge("lockstep_max_restarts", "Maximum number of restarts (--max-restarts).",
                status.max_restarts);
  metrics.gauge("lockstep_machines", "Machines of the running generation; 0: none runs.",
                status.node_count);
  metrics.gauge("lockstep_world_size", "Workers of the running generation, on all machines.",
                status.world_size);
  add_workers(metrics, status);
  return metrics.end();
}

}  // namespace lockstep::inline internal
