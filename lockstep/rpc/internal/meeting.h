#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/rpc/rpc.h"

namespace lockstep::rpc::inline internal {

/// What each worker says of itself to the others.
struct WorkerCard {
  std::string name;
  DeviceMaps device_maps = {};
  std::string machine = {};       ///< the same for those that LocalTransport connects
  std::string local_name = {};    ///< where it is found by others of its machine
  std::uint64_t local_token = 0;  ///< by which they find each other, and nobody else
  std::string problem = {};       ///< why its options cannot be; none: empty
};

/// Collective: all workers' cards, by rank. Errors: as a collective's.
std::vector<WorkerCard> exchange_cards(const ProcessGroup& group, const WorkerCard& own,
                                       const Deadline& deadline);

/// Errors: UsageError for options that cannot be, for names that are empty, longer than 128
/// letters, or of two workers, and for device maps of no worker, with devices other than CUDA's or
/// two to one.
void check_cards(const std::vector<WorkerCard>& cards);

/// What a worker's agent must know to give back what others' device maps send to it.
struct DevicePlan {
  DeviceMaps reverse;
  std::vector<c10::Device> devices;  ///< of this worker; each once
};
DevicePlan plan_devices(const std::vector<WorkerCard>& cards, int rank);

}  // namespace lockstep::rpc::inline internal
