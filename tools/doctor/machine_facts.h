#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline internal {

/// An address of a machine, and the interface that has it.
struct InterfaceFacts {
  std::string name{};
  std::string address{};
  bool is_loopback = false;
  bool is_up = false;
  bool has_carrier = false;
  int mtu = 0;
  bool operator==(const InterfaceFacts&) const = default;
};

/// The program that a job is to run.
struct ProgramFacts {
  /// Empty: none was named.
  std::string name{};
  std::string path{};
  /// Why it cannot be executed; empty: it can.
  std::string trouble{};
  /// A hash of the file's content.
  std::string fingerprint{};
  std::vector<std::string> missing_libraries{};
  /// The LibTorch that it loads, and its version; empty: it loads none.
  std::string libtorch{};
  std::string libtorch_version{};
  bool operator==(const ProgramFacts&) const = default;
};

/// The Python that runs the program, where the program is a script.
struct PythonFacts {
  bool asked = false;
  std::string path{};
  std::string trouble{};
  /// Empty: there is no torch.
  std::string torch_version{};
  bool operator==(const PythonFacts&) const = default;
};

/// What the system reports about one machine, unjudged.
struct MachineFacts {
  std::string host_name{};
  /// What that name resolves to there.
  std::vector<std::string> name_addresses{};
  std::string name_trouble{};
  std::vector<InterfaceFacts> interfaces{};
  /// GLOO_SOCKET_IFNAME; empty: not set.
  std::string gloo_interface{};
  /// The address from which it reaches the other machines, and which it gives to them.
  std::string own_address{};
  std::string own_address_trouble{};
  /// What the host of the rendezvous endpoint resolves to here.
  std::vector<std::string> meeting_addresses{};
  std::string meeting_trouble{};

  /// 0: there is no /dev/shm.
  std::uint64_t shm_bytes = 0;
  std::uint64_t shm_free_bytes = 0;
  std::string temporary_directory{};
  std::string temporary_trouble{};
  std::uint64_t temporary_free_bytes = 0;

  /// Limits of a process; nothing: unlimited.
  std::optional<std::uint64_t> open_files{};
  std::optional<std::uint64_t> processes{};
  std::optional<std::uint64_t> locked_memory_bytes{};
  /// What pids.max of the control group leaves.
  std::optional<std::uint64_t> group_processes_left{};

  int processors = 0;
  /// cpu.max of the control group, in processors.
  std::optional<double> processor_quota{};
  std::uint64_t memory_bytes = 0;
  std::uint64_t memory_available_bytes = 0;

  std::string kernel{};
  std::string lockstep_version{};
  /// A hash of the file `lockstep`.
  std::string lockstep_fingerprint{};
  int gpus = 0;
  std::string gpu_driver{};
  bool has_infiniband = false;
  ProgramFacts program{};
  PythonFacts python{};
  bool operator==(const MachineFacts&) const = default;
};

/// The result of one machine's calls to one address of another.
struct ReachFacts {
  /// The index of the other machine.
  std::size_t target = 0;
  std::string address{};
  /// Empty: it answered.
  std::string trouble{};
  /// The shortest of some round trips.
  double round_trip_us = 0;
  /// How far the other's wall clock is ahead.
  double clock_ahead_us = 0;
  bool operator==(const ReachFacts&) const = default;
};

/// What one machine reports of its calls.
struct ReachReport {
  /// Why it could not listen; empty: it could.
  std::string listen_trouble{};
  std::vector<ReachFacts> calls{};
  bool operator==(const ReachReport&) const = default;
};

/// A machine to call.
struct ReachTarget {
  std::size_t machine = 0;
  std::vector<std::string> addresses{};
  std::uint16_t port = 0;
  bool operator==(const ReachTarget&) const = default;
};

/// What one machine is to do.
struct ReachPlan {
  std::size_t own = 0;
  /// At which it listens.
  std::uint16_t port = 0;
  /// Unique to this examination: an answer with another token comes from another program.
  std::string token{};
  std::vector<ReachTarget> targets{};
  bool operator==(const ReachPlan&) const = default;
};

/// One line of JSON, and back; nothing for anything else. For MachineFacts, ReachReport, ReachPlan.
template <class Value>
std::string encode(const Value& value);
template <class Value>
std::optional<Value> decode(std::string_view text);

}  // namespace lockstep::inline internal
