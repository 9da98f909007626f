#pragma once

namespace lockstep {

/// Processors that this process may run on (taskset and cpusets count), at least 1.
int allowed_cpu_count();

/// NVIDIA devices of this machine: the files /dev/nvidia0, /dev/nvidia1, …
int nvidia_device_count();

}  // namespace lockstep
