#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/rpc/rpc.h"

namespace lockstep::rpc::inline internal {

/// What a worker tells the others about itself.
struct WorkerDescription {
  std::string name;
  DeviceMaps device_maps = {};
  std::string machine = {};       ///< equal for workers that LocalTransport connects
  std::string local_name = {};    ///< its address for workers of its machine
  std::uint64_t local_token = 0;  ///< secret by which they recognize each other
  std::string problem = {};       ///< why its options are invalid; empty if they are valid
};

/// All workers' cards, by rank. Collective.
/// Errors: as a collective's.
std::vector<WorkerDescription> exchange_cards(const ProcessGroup& group,
                                              const WorkerDescription& own,
                                              const Deadline& deadline);

/// Errors: UsageError for invalid options; for names that are empty, longer than 128 characters, or
/// not unique; for device maps of an unknown worker, with devices other than CUDA's, or that map
/// two devices to one.
void check_cards(const std::vector<WorkerDescription>& cards);

/// What a worker's agent needs to send back tensors by the others' device maps.
struct DevicePlan {
  DeviceMaps reverse;
  std::vector<c10::Device> devices;  ///< of this worker; each once
};
DevicePlan plan_devices(const std::vector<WorkerDescription>& cards, int rank);

}  // namespace lockstep::rpc::inline internal
