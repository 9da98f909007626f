#include "tools/doctor/gather_facts.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/os/files/file_fingerprint.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/os/machine/control_groups.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/os/socket/tcp_socket.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

// An IPv4 or IPv6 address; empty for another kind, and for link-local IPv6 addresses.
std::string text_of_address(const sockaddr* address) {
  if (address == nullptr) return "";
  const bool four = address->sa_family == AF_INET;
  if (!four && address->sa_family != AF_INET6) return "";
  if (!four && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr)) {
    return "";
  }
  char text[NI_MAXHOST];
  const socklen_t size = four ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  const int status = ::getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return status == 0 ? text : "";
}

void look_up(const std::string& name, std::vector<std::string>& addresses, std::string& trouble) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(name.c_str(), nullptr, &hints, &found);
  if (status != 0) {
    trouble = ::gai_strerror(status);
    return;
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    const std::string text = text_of_address(address->ai_addr);
    if (!text.empty()) addresses.push_back(text);
  }
}

int mtu_of(const std::string& interface) {
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  return ::ioctl(socket.get(), SIOCGIFMTU, &request) == 0 ? request.ifr_mtu : 0;
}

void look_at_interfaces(MachineFacts& facts) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owned(list, &::freeifaddrs);
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    const std::string address = text_of_address(each->ifa_addr);
    if (address.empty()) continue;
    facts.interfaces.push_back({.name = each->ifa_name,
                                .address = address,
                                .is_loopback = (each->ifa_flags & IFF_LOOPBACK) != 0,
                                .is_up = (each->ifa_flags & IFF_UP) != 0,
                                .has_carrier = (each->ifa_flags & IFF_RUNNING) != 0,
                                .mtu = mtu_of(each->ifa_name)});
  }
}

void find_own_address(MachineFacts& facts, const GatherOptions& options) {
  // A documentation address (RFC 5737): packets to it would take the default route.
  constexpr const char* kElsewhere = "192.0.2.1";
  try {
    facts.own_address =
        options.own_address.empty()
            ? local_address_towards(options.towards.empty() ? kElsewhere : options.towards)
            : options.own_address;
  } catch (const Error& error) {
    facts.own_address_trouble = error.what();
  }
}

void look_at_disks(MachineFacts& facts) {
  const auto space_of = [](const std::string& folder, std::uint64_t& all, std::uint64_t& free) {
    struct statvfs space {};
    if (::statvfs(folder.c_str(), &space) != 0) return;
    all = static_cast<std::uint64_t>(space.f_blocks) * space.f_frsize;
    free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  };
  space_of("/dev/shm", facts.shm_bytes, facts.shm_free_bytes);
  std::error_code error;
  const fs::path temporary = fs::temp_directory_path(error);
  if (error) {
    facts.temporary_trouble = concat("there is no temporary directory: ", error.message());
    return;
  }
  facts.temporary_directory = temporary.string();
  std::uint64_t ignored = 0;
  space_of(facts.temporary_directory, ignored, facts.temporary_free_bytes);
  try {
    const TemporaryDirectory tried(facts.temporary_directory, "lockstep-doctor-");
  } catch (const Error& trouble) {
    facts.temporary_trouble = trouble.what();
  }
}

std::optional<std::uint64_t> limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return std::nullopt;
  if (limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

void look_at_limits(MachineFacts& facts) {
  facts.open_files = limit_of(RLIMIT_NOFILE);
  facts.processes = limit_of(RLIMIT_NPROC);
  facts.locked_memory_bytes = limit_of(RLIMIT_MEMLOCK);
  for_each_control_group("pids", [&](const fs::path& group) {
    std::uint64_t most = 0;
    std::uint64_t now = 0;
    if (!(std::ifstream(group / "pids.max") >> most)) return;  // "max", or no such file
    if (!(std::ifstream(group / "pids.current") >> now)) return;
    const std::uint64_t left = most - std::min(most, now);
    facts.group_processes_left = std::min(facts.group_processes_left.value_or(left), left);
  });
}

void look_at_resources(MachineFacts& facts) {
  facts.processors = allowed_cpu_count();
  facts.processor_quota = cpu_quota();
  facts.memory_bytes = total_memory_bytes();
  facts.memory_available_bytes = available_memory_bytes();
  facts.gpus = nvidia_device_count();
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.1.2  Fri ..."
  std::ifstream words("/proc/driver/nvidia/version");
  for (std::string word; facts.gpu_driver.empty() && words >> word;) {
    if (word.find_first_not_of("0123456789.") == std::string::npos) facts.gpu_driver = word;
  }
  std::error_code error;
  facts.has_infiniband = fs::exists("/sys/class/infiniband", error);
}

}  // namespace

MachineFacts gather_facts(const GatherOptions& options) {
  MachineFacts facts;
  facts.host_name = host_name();
  look_up(facts.host_name, facts.name_addresses, facts.name_trouble);
  if (!options.towards.empty()) {
    look_up(options.towards, facts.meeting_addresses, facts.meeting_trouble);
  }
  look_at_interfaces(facts);
  facts.gloo_interface = env::text(env::kGlooSocketIfname).value_or("");
  find_own_address(facts, options);
  look_at_disks(facts);
  look_at_limits(facts);
  look_at_resources(facts);
  utsname system{};
  if (::uname(&system) == 0) facts.kernel = system.release;
  facts.lockstep_version = options.lockstep_version;
  facts.lockstep_fingerprint = file_fingerprint("/proc/self/exe");
  if (!options.program.empty()) facts.program = look_at_program(options.program);
  if (options.program.ends_with(".py") || env::text(env::kPythonExec)) {
    facts.python = look_at_python();
  }
  return facts;
}

}  // namespace lockstep::inline internal
