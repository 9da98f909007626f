#include "lockstep/record/internal/machine_description.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include <sys/utsname.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/machine/machine.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Of a line "name<spaces>: value"; empty without.
std::string field_of(std::string_view text, std::string_view name) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t colon = line.find(':');
    if (!line.starts_with(name) || colon == std::string_view::npos) continue;
    if (line.substr(name.size(), colon - name.size()).find_first_not_of(" \t") !=
        std::string_view::npos) {
      continue;
    }
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string_view::npos ? "" : std::string(line.substr(value));
  }
  return {};
}

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  std::error_code error;
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    folders.push_back(entry.path());
  }
  std::ranges::sort(folders);
  for (const fs::path& folder : folders) {
    names.push_back(device_name(text_of(folder / "information")));
  }
  return names;
}

}  // namespace

std::string processor_name(std::string_view cpuinfo) {
  std::string name = field_of(cpuinfo, "model name");
  if (!name.empty()) return name;
  const std::string part = field_of(cpuinfo, "CPU part");  // ARM tells no name.
  return part.empty() ? "" : concat("ARM, part ", part);
}

std::string device_name(std::string_view information) {
  const std::string name = field_of(information, "Model");
  return name.empty() ? "NVIDIA device" : name;
}

MachineDescription describe_machine() {
  MachineDescription machine{.host = {},
                             .system = {},
                             .processor = processor_name(text_of("/proc/cpuinfo")),
                             .processors = usable_cpu_count(),
                             .memory_bytes = total_memory_bytes(),
                             .devices = device_names()};
  utsname system{};
  if (::uname(&system) == 0) {
    machine.host = system.nodename;
    machine.system = concat(system.sysname, " ", system.release, " ", system.machine);
  }
  return machine;
}

}  // namespace lockstep::inline internal
