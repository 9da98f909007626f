#include "launcher/status/status_json.h"

#include <cmath>

#include <nlohmann/json.hpp>

namespace lockstep::inline internal {
namespace {

using nlohmann::json;

// Milliseconds are enough.
double rounded(double seconds) {
  return std::round(seconds * 1000) / 1000;
}

json object_of(const WorkerStatus& worker) {
  return {{"rank", worker.rank},
          {"local_rank", worker.local_rank},
          {"pid", worker.pid},
          {"state", name_of(worker.state)},
          {"seconds", rounded(worker.seconds)},
          {"cpu_seconds", rounded(worker.cpu_seconds)},
          {"resident_bytes", worker.resident_bytes}};
}

// Throw where a member is missing or of another type.
WorkerStatus worker_of(const json& object) {
  return {.rank = object.at("rank").get<int>(),
          .local_rank = object.at("local_rank").get<int>(),
          .pid = object.at("pid").get<pid_t>(),
          .state = worker_state_named(object.at("state").get<std::string>()).value(),
          .seconds = object.at("seconds").get<double>(),
          .cpu_seconds = object.at("cpu_seconds").get<double>(),
          .resident_bytes = object.at("resident_bytes").get<std::uint64_t>()};
}

template <class Value>
std::optional<Value> optional_of(const json& value) {
  if (value.is_null()) return std::nullopt;
  return value.get<Value>();
}

JobStatus status_of(const json& object) {
  JobStatus status{.job = object.at("job").get<std::string>(),
                   .is_named = object.at("is_named").get<bool>(),
                   .pid = object.at("pid").get<pid_t>(),
                   .host = object.at("host").get<std::string>(),
                   .program = object.at("program").get<std::string>(),
                   .role = object.at("role").get<std::string>(),
                   .state = job_state_named(object.at("state").get<std::string>()).value(),
                   .generation = object.at("generation").get<std::uint64_t>(),
                   .restarts = object.at("restarts").get<int>(),
                   .max_restarts = object.at("max_restarts").get<int>(),
                   .cause = object.at("cause").get<std::string>(),
                   .node_rank = optional_of<int>(object.at("node_rank")),
                   .node_count = object.at("node_count").get<int>(),
                   .world_size = object.at("world_size").get<int>(),
                   .worker_count = object.at("worker_count").get<int>(),
                   .seconds = object.at("seconds").get<double>(),
                   .workers_seconds = optional_of<double>(object.at("workers_seconds")),
                   .log_directory = object.at("log_directory").get<std::string>(),
                   .missing = object.at("missing").get<std::string>(),
                   .is_healthy = object.at("healthy").get<bool>(),
                   .health = object.at("health").get<std::string>()};
  for (const json& worker : object.at("workers")) status.workers.push_back(worker_of(worker));
  return status;
}

}  // namespace

std::string to_json(const JobStatus& status) {
  const auto or_null = [](const auto& value) { return value ? json(*value) : json(); };
  json object = {{"job", status.job},
                 {"is_named", status.is_named},
                 {"pid", status.pid},
                 {"host", status.host},
                 {"program", status.program},
                 {"role", status.role},
                 {"state", name_of(status.state)},
                 {"generation", status.generation},
                 {"restarts", status.restarts},
                 {"max_restarts", status.max_restarts},
                 {"cause", status.cause},
                 {"node_rank", or_null(status.node_rank)},
                 {"node_count", status.node_count},
                 {"world_size", status.world_size},
                 {"worker_count", status.worker_count},
                 {"seconds", rounded(status.seconds)},
                 {"workers_seconds", json()},
                 {"log_directory", status.log_directory},
                 {"missing", status.missing},
                 {"healthy", status.is_healthy},
                 {"health", status.health},
                 {"workers", json::array()}};
  if (status.workers_seconds) object["workers_seconds"] = rounded(*status.workers_seconds);
  for (const WorkerStatus& worker : status.workers) object["workers"].push_back(object_of(worker));
  // What programs print need not be UTF-8.
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string trouble_json(pid_t pid, const std::string& trouble) {
  return nlohmann::json{{"pid", pid}, {"trouble", trouble}}.dump();
}

std::optional<JobStatus> parse_status(std::string_view text) {
  try {
    return status_of(json::parse(text));
  } catch (const json::exception&) {
    return std::nullopt;
  } catch (const std::bad_optional_access&) {
    return std::nullopt;
  }
}

}  // namespace lockstep::inline internal
