#include <algorithm>
#include <cstdio>
#include <set>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/socket/tcp_socket.h"
#include "tools/doctor/judge_machines.h"

namespace lockstep::inline internal {
namespace {

using Level = Finding::Level;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kUnlimited = ~0ULL;

std::string number_text(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g", number);
  return text;
}

std::string size_text(std::uint64_t bytes) {
  if (bytes == kUnlimited) return "unlimited";
  const auto mebibytes = static_cast<double>(bytes) / kMiB;
  if (mebibytes >= 1024) return concat(number_text(mebibytes / 1024), " GiB");
  return concat(number_text(mebibytes), " MiB");
}

std::string limit_text(std::uint64_t limit) {
  return limit == kUnlimited ? "unlimited" : std::to_string(limit);
}

template <class Texts>
std::string joined(const Texts& texts) {
  std::string result;
  for (const std::string& text : texts) result += concat(result.empty() ? "" : ", ", text);
  return result;
}

class Judge {
 public:
  Judge(const MachineFacts& facts, std::string machine, bool has_peers)
      : facts_(facts), machine_(std::move(machine)), has_peers_(has_peers) {}

  std::vector<Finding> run() {
    host_name();
    gloo_interface();
    interface();
    shared_memory();
    temporary_files();
    limits();
    processors();
    memory();
    versions();
    devices();
    program();
    python();
    return std::move(findings_);
  }

 private:
  // `cure` is for findings that are not in order.
  void add(Level level, const char* subject, const std::string& text,
           const std::string& cure = "") {
    findings_.push_back({level, machine_, subject, text, level == Level::kOk ? "" : cure});
  }
  static Level warn_if(bool is_wrong) { return is_wrong ? Level::kWarn : Level::kOk; }

  void host_name() {
    const std::string& name = facts_.host_name;
    const std::string where = concat(name, " resolves to ", joined(facts_.name_addresses));
    if (!facts_.name_trouble.empty()) {
      add(Level::kWarn, "host name", concat(name, " does not resolve: ", facts_.name_trouble),
          concat("PyTorch's Gloo fails without it: add the line '<address> ", name,
                 "' to /etc/hosts"));
    } else if (has_peers_ && std::ranges::all_of(facts_.name_addresses, is_loopback_address)) {
      add(Level::kWarn, "host name", concat(where, ", which is loopback on every machine"),
          concat("Lockstep gives its address to the others instead, but PyTorch's Gloo gives this "
                 "one: put the machine's address beside ",
                 name, " in /etc/hosts, or set GLOO_SOCKET_IFNAME"));
    } else {
      add(Level::kOk, "host name", where);
    }
  }

  std::set<std::string> other_interfaces() const {
    std::set<std::string> names;
    for (const InterfaceFacts& each : facts_.interfaces) {
      if (each.is_up && !each.is_loopback) names.insert(concat(each.name, " ", each.address));
    }
    return names;
  }

  void gloo_interface() {
    const std::string& gloo = facts_.gloo_interface;
    if (gloo.empty() || std::ranges::count(facts_.interfaces, gloo, &InterfaceFacts::name) > 0) {
      return;
    }
    add(Level::kFail, "interface",
        concat("GLOO_SOCKET_IFNAME=", gloo, ": no interface of that name has an address"),
        concat("the interfaces are ", joined(other_interfaces()), "; unset it or name one"));
  }

  void interface() {
    const auto chosen =
        std::ranges::find(facts_.interfaces, facts_.own_address, &InterfaceFacts::address);
    if (!facts_.own_address_trouble.empty()) {
      add(has_peers_ ? Level::kFail : Level::kOk, "interface",
          has_peers_ ? facts_.own_address_trouble : "no route to other machines",
          "give this machine a route to the others");
    } else if (chosen == facts_.interfaces.end()) {
      add(Level::kFail, "interface", concat("no interface has the address ", facts_.own_address),
          "correct --local-addr");
    } else if (!chosen->is_up || !chosen->has_carrier) {
      add(Level::kFail, "interface",
          concat(chosen->name, " (", chosen->address, ") is ",
                 chosen->is_up ? "without a carrier" : "down"),
          concat("plug in its cable, or: ip link set ", chosen->name, " up"));
    } else {
      const auto others = other_interfaces();
      add(Level::kOk, "interface",
          concat(chosen->name, " ", chosen->address, ", MTU ", chosen->mtu,
                 others.size() > 1 ? concat("; --local-addr chooses another of ", joined(others))
                                   : ""));
    }
  }

  void shared_memory() {
    constexpr std::uint64_t kFew = 64 * kMiB;
    add(warn_if(facts_.shm_free_bytes < kFew), "shared memory",
        facts_.shm_bytes == 0 ? "there is no /dev/shm"
                              : concat("/dev/shm has ", size_text(facts_.shm_free_bytes),
                                       " free of ", size_text(facts_.shm_bytes)),
        "NCCL and Python's DataLoader need it, Lockstep does not: docker run --shm-size=8g, or "
        "mount -o remount,size=8g /dev/shm");
  }

  void temporary_files() {
    constexpr std::uint64_t kFew = 100 * kMiB;
    if (!facts_.temporary_trouble.empty()) {
      add(Level::kFail, "temporary files", facts_.temporary_trouble,
          "set TMPDIR to a writable folder");
      return;
    }
    add(warn_if(facts_.temporary_free_bytes < kFew), "temporary files",
        concat(facts_.temporary_directory, " has ", size_text(facts_.temporary_free_bytes),
               " free"),
        "free some, or set TMPDIR to another folder");
  }

  void limits() {
    // The launcher opens some ten for each worker, a worker some for each other machine.
    constexpr std::uint64_t kFewFiles = 1024;
    constexpr std::uint64_t kTooFewFiles = 256;
    constexpr std::uint64_t kFewProcesses = 1024;
    constexpr std::uint64_t kFewLocked = 64 * kMiB;
    const std::uint64_t files = facts_.open_files.value_or(kUnlimited);
    add(files < kTooFewFiles ? Level::kFail : warn_if(files < kFewFiles), "open files",
        concat("at most ", limit_text(files)), "ulimit -n 65536, or LimitNOFILE= of its service");
    const std::uint64_t left = facts_.group_processes_left.value_or(kUnlimited);
    const std::uint64_t processes = std::min(facts_.processes.value_or(kUnlimited), left);
    add(warn_if(processes < kFewProcesses), "processes",
        concat("at most ", limit_text(processes), ", and each thread counts as one"),
        processes == left ? "raise pids.max of the control group (docker run --pids-limit)"
                          : "ulimit -u 65536");
    const std::uint64_t locked = facts_.locked_memory_bytes.value_or(kUnlimited);
    const bool has_rdma = facts_.gpus > 0 || facts_.has_infiniband;
    add(warn_if(has_rdma && locked < kFewLocked), "locked memory",
        concat("at most ", size_text(locked)), "RDMA needs more: ulimit -l unlimited");
  }

  void processors() {
    const double quota = facts_.processor_quota.value_or(facts_.processors);
    add(warn_if(quota < 1), "processors",
        concat(facts_.processors,
               quota < facts_.processors
                   ? concat(", but the control group grants the time of ", number_text(quota))
                   : ""),
        "raise cpu.max of the control group (docker run --cpus)");
  }

  void memory() {
    constexpr std::uint64_t kFew = 1024 * kMiB;
    constexpr std::uint64_t kTooFew = 256 * kMiB;
    const std::uint64_t free = facts_.memory_available_bytes;
    add(free < kTooFew ? Level::kFail : warn_if(free < kFew), "memory",
        concat(size_text(free), " available of ", size_text(facts_.memory_bytes)),
        "LibTorch alone takes some 200 MiB in each worker: raise the control group's limit, or end "
        "other programs");
  }

  void versions() {
    int major = 0;
    int minor = 0;
    std::sscanf(facts_.kernel.c_str(), "%d.%d", &major, &minor);
    const bool is_old = major < 5 || (major == 5 && minor < 9);
    add(is_old ? Level::kFail : Level::kOk, "versions",
        concat("lockstep ", facts_.lockstep_version, " (", facts_.lockstep_fingerprint, "), Linux ",
               facts_.kernel),
        "Lockstep needs Linux 5.9 or later");
  }

  void devices() {
    const bool has_driver = facts_.gpus == 0 || !facts_.gpu_driver.empty();
    add(warn_if(!has_driver), "GPUs",
        facts_.gpus == 0
            ? "none"
            : concat(facts_.gpus, " NVIDIA, driver ", has_driver ? facts_.gpu_driver : "unknown"),
        "see nvidia-smi");
  }

  void program() {
    const ProgramFacts& program = facts_.program;
    if (program.name.empty()) return;
    if (!program.trouble.empty()) {
      add(Level::kFail, "program", program.trouble,
          has_peers_ ? "it must be at the same path on each machine" : "");
    } else if (!program.missing_libraries.empty()) {
      add(Level::kFail, "program",
          concat(program.path, " needs ", joined(program.missing_libraries), ", which is missing"),
          "install it, or set LD_LIBRARY_PATH to its folder");
    } else {
      add(Level::kOk, "program",
          concat(program.path, " (", program.fingerprint, ")",
                 program.libtorch.empty()
                     ? ""
                     : concat(", LibTorch ", program.libtorch_version, ", ", program.libtorch)));
    }
  }

  void python() {
    const PythonFacts& python = facts_.python;
    if (!python.asked) return;
    if (!python.trouble.empty()) {
      add(Level::kFail, "Python", python.trouble, "set PYTHON_EXEC to another");
      return;
    }
    const bool has_torch = !python.torch_version.empty();
    add(warn_if(!has_torch), "Python",
        concat(python.path, has_torch ? ", torch " + python.torch_version : " has no torch"),
        "set PYTHON_EXEC to a Python with torch, or pip install torch");
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

}  // namespace lockstep::inline internal
