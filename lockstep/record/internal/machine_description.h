#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline internal {

/// The machine on which a training run's figures depend.
struct MachineDescription {
  std::string host;
  std::string system;     ///< "Linux 6.1.0 x86_64"
  std::string processor;  ///< its model name
  int processors = 0;     ///< that this process may use
  std::uint64_t memory_bytes = 0;
  std::vector<std::string> devices;  ///< model names of NVIDIA devices
};

/// Describes this machine; unknown members are empty.
MachineDescription describe_machine();

/// The processor's name in the text of /proc/cpuinfo, or its part numbers; empty if it has none.
/// Pure.
std::string processor_name(std::string_view cpuinfo);

/// The device's name in the text of /proc/driver/nvidia/gpus/<bus>/information. Pure.
std::string device_name(std::string_view information);

}  // namespace lockstep::inline internal
