#pragma once

#include <cstdint>
#include <string>

namespace lockstep::inline internal {

/// This machine's own name.
/// Errors: SystemError.
std::string host_name();

/// Name of this process's effective user, or its number.
std::string user_name();

/// Number of processors that this process may run on (taskset and cpusets are respected), at least
/// 1.
int allowed_cpu_count();

/// Number of processors whose time this process gets: `allowed`, limited by its control group's
/// quota (rounded up), at least 1.
int usable_cpu_count(int allowed = allowed_cpu_count());

/// Memory that this process can still allocate, by the machine's count and its control groups'
/// limits.
std::uint64_t available_memory_bytes();

/// Memory of the machine.
std::uint64_t total_memory_bytes();

/// Equal in all processes that can share memory by passing descriptors: those of one boot of one
/// machine and one network namespace (usually one container).
std::string memory_domain();

/// Number of NVIDIA devices of this machine: the files /dev/nvidia0, /dev/nvidia1, …
int nvidia_device_count();

}  // namespace lockstep::inline internal
