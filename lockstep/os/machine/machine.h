#pragma once

#include <cstdint>
#include <string>

namespace lockstep::inline internal {

/// The name by which this machine knows itself. Errors: SystemError.
std::string host_name();

/// The name of the user whose rights this process has, or its number.
std::string user_name();

/// Processors that this process may run on (taskset and cpusets count), at least 1.
int allowed_cpu_count();

/// Processors of the `allowed` ones that this process gets the time of: no more than its control
/// group's quota (rounded up), at least 1.
int usable_cpu_count(int allowed = allowed_cpu_count());

/// Memory that can still be taken, by this machine's reckoning and the limits of this process's
/// control groups.
std::uint64_t available_memory_bytes();

/// The memory of the machine.
std::uint64_t total_memory_bytes();

/// The same text in all processes that can share memory with each other by passing descriptors:
/// those of one boot of one machine and one network namespace (mostly: one container).
std::string memory_domain();

/// NVIDIA devices of this machine: the files /dev/nvidia0, /dev/nvidia1, …
int nvidia_device_count();

}  // namespace lockstep::inline internal
