#include "launcher/supervise/worker_environment.h"

#include <algorithm>
#include <array>
#include <map>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/job/internal/worker_link.h"
#include "lockstep/os/process/fork_request.h"
#include "lockstep/os/process/signals.h"

namespace lockstep::inline internal {
namespace {

std::string signal_list(const std::vector<int>& signals) {
  std::string text;
  for (const int signal : signals) text.append(text.empty() ? "" : ",").append(signal_name(signal));
  return text;
}

// The device that worker `local_rank` has of those listed: "4,5" gives worker 1 device 5.
std::string visible_device(const std::string* listed, int local_rank) {
  if (listed != nullptr) {
    const std::vector<std::string> devices = comma_list(*listed);
    const auto index = static_cast<std::size_t>(local_rank);
    if (index < devices.size()) return devices[index];
  }
  return std::to_string(local_rank);
}

}  // namespace

Environment worker_environment(const LaunchOptions& options, const GenerationFacts& facts,
                               int local_rank, const std::string& error_file,
                               const Environment& inherited) {
  std::map<std::string, std::string> values;
  for (const std::string& line : inherited) {
    const auto equals = line.find('=');
    if (equals != std::string::npos) values[line.substr(0, equals)] = line.substr(equals + 1);
  }
  const auto set = [&](const char* name, const auto& value) { values[name] = concat(value); };
  const NodePlacement& place = facts.placement;
  const int rank = place.first_rank + local_rank;

  set(env::kRank.name, rank);
  set(env::kLocalRank.name, local_rank);
  set("GROUP_RANK", place.node_rank);
  set("ROLE_RANK", place.first_role_rank + local_rank);
  set("ROLE_NAME", options.role);
  set(env::kWorldSize.name, place.world_size);
  set(env::kLocalWorldSize.name, options.worker_count);
  set("GROUP_WORLD_SIZE", place.node_count);
  set("ROLE_WORLD_SIZE", place.role_world_size);
  set(env::kMasterAddr.name, place.store_host);
  set(env::kMasterPort.name, place.store_port);
  set(env::kRestartCount.name, torchrun_attempt(facts.generation));
  set("TORCHELASTIC_MAX_RESTARTS", options.max_restarts);
  set(env::kRunId.name, options.run_id);
  // The launcher serves no store: rank 0 does, which with True would wait for the launcher's.
  set(env::kUseAgentStore.name, "False");
  set(env::kErrorFile.name, error_file);
  if (!facts.job_mark.empty()) set(env::kJobMark.name, facts.job_mark);
  set("TORCHELASTIC_SIGNALS_TO_HANDLE", signal_list(options.signals_to_handle));
  values.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (options.worker_count > 1 || facts.limited_time) {
    values.try_emplace(env::kOmpNumThreads.name,
                       concat(thread_share(facts.processors, local_rank, options.worker_count,
                                           facts.allowed_cpus)));
  }
  if (options.virtual_local_rank) {
    const auto listed = values.find(env::kCudaVisibleDevices.name);
    set(env::kCudaVisibleDevices.name,
        visible_device(listed == values.end() ? nullptr : &listed->second, local_rank));
    set(env::kLocalRank.name, 0);
  }
  // A launcher may itself run under a launcher, whose descriptors are not ours.
  values.erase(env::kStoreListenFd.name);
  values.erase(env::kLauncherFd.name);
  values.erase(kForkServerFd.name);
  values.erase(env::kStandby.name);
  values.erase(env::kStateMemoryFd.name);
  values.erase(kStepsMade.name);
  // A worker has no use for the secret by which machines join.
  values.erase(env::kJobSecret.name);
  if (rank == 0 && facts.store_listen_fd) set(env::kStoreListenFd.name, *facts.store_listen_fd);

  Environment result;
  for (const auto& [name, value] : values) result.push_back(concat(name, "=", value));
  return result;
}

bool is_of_one_worker(std::string_view line) {
  const std::string_view name = line.substr(0, line.find('='));
  const auto is_name = [&](const char* known) { return name == known; };
  return std::ranges::any_of(
      std::array{env::kRank.name, env::kLocalRank.name, "GROUP_RANK", "ROLE_RANK",
                 env::kWorldSize.name, env::kLocalWorldSize.name, "GROUP_WORLD_SIZE",
                 "ROLE_WORLD_SIZE", env::kMasterAddr.name, env::kMasterPort.name,
                 env::kRestartCount.name, env::kErrorFile.name, env::kStoreListenFd.name,
                 env::kLauncherFd.name, env::kStandby.name, env::kStateMemoryFd.name,
                 kStepsMade.name},
      is_name);
}

}  // namespace lockstep::inline internal
