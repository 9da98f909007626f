#include "tools/doctor/judge_machine.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/socket/tcp_socket.h"
#include "tools/doctor/judge_program.h"

namespace lockstep::inline internal {
namespace {

using Level = Finding::Level;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::string limit_text(const std::optional<std::uint64_t>& limit) {
  return limit ? std::to_string(*limit) : "unlimited";
}

std::string number_text(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g", number);
  return text;
}

class Judge {
 public:
  Judge(const MachineFacts& facts, std::string machine, bool has_peers)
      : facts_(facts), machine_(std::move(machine)), has_peers_(has_peers) {}

  std::vector<Finding> run() {
    host_name();
    interfaces();
    port();
    clock();
    shared_memory();
    temporary_files();
    limits();
    processors();
    memory();
    kernel();
    devices();
    judge_program(facts_, machine_, has_peers_, findings_);
    return std::move(findings_);
  }

 private:
  void add(Level level, const char* subject, const std::string& text,
           const std::string& cure = "") {
    findings_.push_back({level, machine_, subject, text, cure});
  }
  void ok(const char* subject, const std::string& text) { add(Level::kOk, subject, text); }

  void host_name() {
    const std::string& name = facts_.host_name;
    const auto& addresses = facts_.name_addresses;
    const std::string where = concat(name, " is ", joined(addresses));
    if (!facts_.name_trouble.empty()) {
      add(Level::kWarn, "host name", concat(name, " does not resolve: ", facts_.name_trouble),
          concat(
              "programs that ask for their own address, as PyTorch's Gloo does, fail: add a line "
              "'<address> ",
              name, "' to /etc/hosts"));
    } else if (has_peers_ && std::ranges::all_of(addresses, is_loopback_address)) {
      add(Level::kWarn, "host name", concat(where, ", which means each machine itself"),
          concat("Lockstep passes its address instead, but PyTorch's Gloo would pass this one: put "
                 "the machine's address beside ",
                 name, " in /etc/hosts, or set GLOO_SOCKET_IFNAME"));
    } else {
      ok("host name", where);
    }
  }

  void interfaces() {
    const InterfaceFacts* chosen = nullptr;
    std::set<std::string> others;
    for (const InterfaceFacts& each : facts_.interfaces) {
      if (each.address == facts_.own_address) chosen = &each;
      if (each.is_up && !each.is_loopback) others.insert(concat(each.name, " ", each.address));
    }
    const std::string& gloo = facts_.gloo_interface;
    const bool has_gloo = std::ranges::any_of(
        facts_.interfaces, [&](const InterfaceFacts& each) { return each.name == gloo; });
    if (!gloo.empty() && !has_gloo) {
      add(Level::kFail, "interface",
          concat("GLOO_SOCKET_IFNAME=", gloo,
                 ": there is none of that name "
                 "with an address"),
          concat("the interfaces are ", joined({others.begin(), others.end()}),
                 "; unset it or name one"));
    }
    if (!facts_.own_address_trouble.empty()) {
      add(has_peers_ ? Level::kFail : Level::kOk, "interface",
          has_peers_ ? facts_.own_address_trouble : "no way to other machines",
          has_peers_ ? "give this machine a route to the others" : "");
    } else if (chosen == nullptr) {
      add(Level::kFail, "interface", concat("no interface has the address ", facts_.own_address),
          "correct --local-addr");
    } else if (!chosen->is_up || !chosen->has_carrier) {
      add(Level::kFail, "interface",
          concat(chosen->name, " (", chosen->address, ") is ",
                 chosen->is_up ? "without a carrier" : "switched off"),
          concat("plug in its cable, or: ip link set ", chosen->name, " up"));
    } else {
      ok("interface",
         concat(chosen->name, " ", chosen->address, ", MTU ", chosen->mtu,
                others.size() > 1 ? concat("; there are ", joined({others.begin(), others.end()}),
                                           ", and --local-addr chooses")
                                  : ""));
    }
  }

  void port() {
    if (!facts_.own_address_trouble.empty()) return;
    if (facts_.port_trouble.empty()) {
      ok("port", concat("a free one can be bound at ", facts_.own_address));
    } else {
      add(Level::kFail, "port", facts_.port_trouble, "the job's store needs one");
    }
  }

  void clock() {
    const std::string& source = facts_.clock_source;
    if (source == "hpet" || source == "acpi_pm" || source == "jiffies") {
      add(Level::kWarn, "clock",
          concat("the kernel's is ", source, ": each look at it takes a microsecond"),
          "see dmesg for why tsc was given up");
    } else {
      ok("clock", source.empty() ? "monotonic" : concat("monotonic, ", source));
    }
  }

  void shared_memory() {
    // Python's DataLoader and NCCL keep their buffers there.
    constexpr std::uint64_t kFew = 64 * kMiB;
    const std::string text = facts_.shm_bytes == 0
                                 ? "there is no /dev/shm"
                                 : concat("/dev/shm has ", size_text(facts_.shm_free_bytes),
                                          " free of ", size_text(facts_.shm_bytes));
    if (facts_.shm_free_bytes < kFew) {
      add(Level::kWarn, "shared memory", text,
          "Lockstep needs none of it, but NCCL and the workers of Python's DataLoader do: docker "
          "run "
          "--shm-size=8g, or mount -o remount,size=8g /dev/shm");
    } else {
      ok("shared memory", text);
    }
  }

  void temporary_files() {
    constexpr std::uint64_t kFew = 100 * kMiB;
    const std::string text = concat(facts_.temporary_directory, " has ",
                                    size_text(facts_.temporary_free_bytes), " free");
    if (!facts_.temporary_trouble.empty()) {
      add(Level::kFail, "temporary files", facts_.temporary_trouble,
          "set TMPDIR to a folder that can be written to");
    } else if (facts_.temporary_free_bytes < kFew) {
      add(Level::kWarn, "temporary files", text, "free some, or set TMPDIR to another");
    } else {
      ok("temporary files", text);
    }
  }

  void limits() {
    // The launcher has some ten for each worker, a worker some for each other machine.
    constexpr std::uint64_t kFewFiles = 1024;
    constexpr std::uint64_t kTooFewFiles = 256;
    constexpr std::uint64_t kFewProcesses = 1024;
    const std::uint64_t files = facts_.open_files.value_or(~0ULL);
    if (files < kFewFiles) {
      add(files < kTooFewFiles ? Level::kFail : Level::kWarn, "open files",
          concat("a process may have ", files), "ulimit -n 65536, or LimitNOFILE= of its service");
    } else {
      ok("open files", limit_text(facts_.open_files));
    }
    const std::uint64_t processes =
        std::min(facts_.processes.value_or(~0ULL), facts_.group_processes_left.value_or(~0ULL));
    if (processes < kFewProcesses) {
      const bool by_group = processes == facts_.group_processes_left;
      add(Level::kWarn, "processes",
          concat(by_group ? "the control group leaves " : "a user may have ", processes,
                 ", and each thread counts as one"),
          by_group ? "raise its pids.max (docker run --pids-limit)" : "ulimit -u 65536");
    } else {
      ok("processes", processes == ~0ULL ? "unlimited" : std::to_string(processes));
    }
    constexpr std::uint64_t kFewLocked = 64 * kMiB;
    const bool locks = facts_.gpus > 0 || facts_.has_infiniband;
    if (locks && facts_.locked_memory_bytes.value_or(~0ULL) < kFewLocked) {
      add(Level::kWarn, "locked memory", size_text(*facts_.locked_memory_bytes),
          "RDMA needs more: ulimit -l unlimited");
    } else {
      ok("locked memory",
         facts_.locked_memory_bytes ? size_text(*facts_.locked_memory_bytes) : "unlimited");
    }
    ok("core files", facts_.core_bytes == 0 ? "none are written; ulimit -c unlimited allows them"
                                            : "are written");
  }

  void processors() {
    const auto& quota = facts_.processor_quota;
    const std::string all = concat(facts_.processors, " to run on");
    if (!quota || *quota >= facts_.processors) {
      ok("processors", all);
      return;
    }
    const std::string text =
        concat(all, ", of which the control group grants the time of ", number_text(*quota));
    if (*quota < 1) {
      add(Level::kWarn, "processors", text, "raise its cpu.max (docker run --cpus)");
    } else {
      ok("processors", text);
    }
  }

  void memory() {
    constexpr std::uint64_t kFew = 1024 * kMiB;
    constexpr std::uint64_t kTooFew = 256 * kMiB;
    const std::uint64_t free = facts_.memory_available_bytes;
    const std::string text =
        concat(size_text(free), " available of ", size_text(facts_.memory_bytes), ", swap ",
               facts_.swap_bytes == 0 ? "none" : size_text(facts_.swap_bytes));
    if (free < kFew) {
      add(free < kTooFew ? Level::kFail : Level::kWarn, "memory", text,
          "each worker takes some 200 MiB for LibTorch alone: raise the control group's limit, or "
          "end "
          "other programs");
    } else {
      ok("memory", text);
    }
    constexpr int kNeverOvercommit = 2;
    if (facts_.overcommit_memory != kNeverOvercommit) return;
    add(Level::kWarn, "memory", "vm.overcommit_memory is 2: what is reserved counts as used",
        "LibTorch reserves more than it uses: sysctl vm.overcommit_memory=0");
  }

  void kernel() {
    int major = 0;
    int minor = 0;
    std::sscanf(facts_.kernel.c_str(), "%d.%d", &major, &minor);
    const std::string text = concat("lockstep ", facts_.lockstep_version, " (",
                                    facts_.lockstep_fingerprint, "), Linux ", facts_.kernel);
    const bool old = major < 5 || (major == 5 && minor < 9);
    if (old) {
      add(Level::kFail, "versions", text, "Lockstep needs Linux 5.9 or later");
    } else {
      ok("versions", text);
    }
  }

  void devices() {
    if (facts_.gpus > 0 && facts_.gpu_driver.empty()) {
      add(Level::kWarn, "GPUs", concat(facts_.gpus, " NVIDIA, but their driver tells no version"),
          "see nvidia-smi");
    } else if (facts_.gpus > 0) {
      ok("GPUs", concat(facts_.gpus, " NVIDIA, driver ", facts_.gpu_driver));
    } else {
      ok("GPUs", "none");
    }
  }

  const MachineFacts& facts_;
  const std::string machine_;
  const bool has_peers_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> judge_machine(const MachineFacts& facts, const std::string& machine,
                                   bool has_peers) {
  return Judge(facts, machine, has_peers).run();
}

std::string size_text(std::uint64_t bytes) {
  const auto mebibytes = static_cast<double>(bytes) / kMiB;
  if (mebibytes >= 1024) return concat(number_text(mebibytes / 1024), " GiB");
  return concat(number_text(mebibytes), " MiB");
}

}  // namespace lockstep::inline internal
