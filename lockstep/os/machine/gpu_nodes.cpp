#include "lockstep/os/machine/gpu_nodes.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <system_error>

#include "lockstep/base/internal/parse_number.h"
#include "lockstep/base/internal/text.h"

namespace lockstep::inline internal {
namespace {

using Path = std::filesystem::path;

std::string uuid_in(const Path& information) {
  constexpr std::string_view kName = "GPU UUID:";
  std::ifstream file(information);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kName)) continue;
    const auto start = line.find_first_not_of(" \t", kName.size());
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

// A machine with one node may say -1.
int node_of(const Path& root, std::string address) {
  for (char& c : address) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::string text;
  std::ifstream(root / "sys/bus/pci/devices" / address / "numa_node") >> text;
  return std::max(parse_number<int>(text).value_or(0), 0);
}

const GpuPlace* find_gpu(const std::vector<GpuPlace>& gpus, const std::string& entry) {
  if (const auto index = parse_number<std::size_t>(entry)) {
    return *index < gpus.size() ? &gpus[*index] : nullptr;
  }
  // CUDA takes the beginning of a uuid that is of one device only.
  if (!entry.starts_with("GPU-")) return nullptr;
  const auto matches = [&](const GpuPlace& gpu) { return gpu.uuid.starts_with(entry); };
  if (std::count_if(gpus.begin(), gpus.end(), matches) != 1) return nullptr;
  return &*std::find_if(gpus.begin(), gpus.end(), matches);
}

}  // namespace

std::vector<GpuPlace> read_gpu_places(const Path& root) {
  std::vector<std::string> addresses;
  std::error_code error;
  const Path folder = root / "proc/driver/nvidia/gpus";
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    addresses.push_back(entry.path().filename().string());
  }
  std::sort(addresses.begin(), addresses.end());
  std::vector<GpuPlace> gpus;
  for (const std::string& address : addresses) {
    gpus.push_back({uuid_in(folder / address / "information"), node_of(root, address)});
  }
  return gpus;
}

std::vector<int> visible_gpu_nodes(const std::vector<GpuPlace>& gpus,
                                   const std::optional<std::string>& visible) {
  std::vector<int> nodes;
  if (!visible) {
    for (const GpuPlace& gpu : gpus) nodes.push_back(gpu.node);
    return nodes;
  }
  for (const std::string& entry : comma_list(*visible)) {
    const GpuPlace* const gpu = find_gpu(gpus, entry);
    if (gpu == nullptr) break;
    nodes.push_back(gpu->node);
  }
  return nodes;
}

}  // namespace lockstep::inline internal
