#include "lockstep/record/internal/run_log.h"

#include <nlohmann/json.hpp>

#include "lockstep/record/internal/json_line.h"
#include "lockstep/record/internal/machine_description.h"
#include "lockstep/record/internal/wall_seconds.h"

namespace lockstep::inline internal {

using nlohmann::ordered_json;

RunLog::RunLog(const std::filesystem::path& folder)
    : log_(folder / "runs.jsonl", {.what = "write runs to", .when_full = "free disk space"}) {}

void RunLog::begin(const Begin& begin) {
  const MachineDescription machine = describe_machine();
  ordered_json versions = {{"lockstep", LOCKSTEP_VERSION}};
  for (const auto& [name, version] : begin.versions) versions[name] = version;
  log_.append(json_line({{"event", "begin"},
                         {"time", wall_seconds()},
                         {"step", begin.step},
                         {"ranks", begin.ranks},
                         {"machine",
                          {{"host", machine.host},
                           {"system", machine.system},
                           {"processor", machine.processor},
                           {"processors", machine.processors},
                           {"memory_bytes", machine.memory_bytes},
                           {"devices", machine.devices}}},
                         {"versions", versions}}));
}

void RunLog::end(std::int64_t step, const std::string& how) {
  log_.append(
      json_line({{"event", "end"}, {"time", wall_seconds()}, {"step", step}, {"how", how}}));
}

}  // namespace lockstep::inline internal
