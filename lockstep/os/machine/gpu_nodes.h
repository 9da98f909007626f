#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// An NVIDIA device, as its driver shows it.
struct GpuPlace {
  std::string uuid{};
  /// The NUMA node that it is nearest to.
  int node = 0;
};

/// The devices of this machine in the order of their PCI addresses: CUDA's, where all are of one
/// kind. `root` stands for "/".
std::vector<GpuPlace> read_gpu_places(const std::filesystem::path& root = "/");

/// The NUMA nodes of the devices that a program sees, in its order. `visible` is what
/// CUDA_VISIBLE_DEVICES says, if it is set: numbers or uuids; as in CUDA, what follows an entry
/// that stands for no device is not seen.
std::vector<int> visible_gpu_nodes(const std::vector<GpuPlace>& gpus,
                                   const std::optional<std::string>& visible);

}  // namespace lockstep::inline internal
