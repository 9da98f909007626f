#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// An NVIDIA device, as its driver reports it.
struct GpuPlace {
  std::string uuid{};
  /// Nearest NUMA node.
  int node = 0;
};

/// Devices of this machine in order of PCI addresses, which is CUDA's order if all are of one kind.
/// `root` replaces "/" in tests.
std::vector<GpuPlace> read_gpu_places(const std::filesystem::path& root = "/");

/// NUMA nodes of the devices that a program sees, in its order. `visible`: CUDA_VISIBLE_DEVICES, if
/// set: numbers or uuids; as in CUDA, entries after an invalid one are ignored.
std::vector<int> visible_gpu_nodes(const std::vector<GpuPlace>& gpus,
                                   const std::optional<std::string>& visible);

}  // namespace lockstep::inline internal
