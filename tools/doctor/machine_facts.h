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
  /// Switched on, and with a carrier.
  bool is_up = false;
  bool has_carrier = false;
  int mtu = 0;
  bool operator==(const InterfaceFacts&) const = default;
};

/// A program that a job is to run.
struct ProgramFacts {
  /// Empty: none was named.
  std::string name{};
  std::string path{};
  /// Why it cannot be executed; empty: it can.
  std::string trouble{};
  /// Of the file's content.
  std::string fingerprint{};
  std::vector<std::string> missing_libraries{};
  /// The LibTorch that it loads, and its version; empty: it loads none.
  std::string libtorch{};
  std::string libtorch_version{};
  bool operator==(const ProgramFacts&) const = default;
};

/// The Python that programs would run under, where that was asked for.
struct PythonFacts {
  bool asked = false;
  std::string path{};
  std::string trouble{};
  /// Empty: there is no torch.
  std::string torch_version{};
  bool operator==(const PythonFacts&) const = default;
};

/// What the system says of one machine, and nothing of what it means.
struct MachineFacts {
  std::string host_name{};
  /// What that name stands for there.
  std::vector<std::string> name_addresses{};
  std::string name_trouble{};
  std::vector<InterfaceFacts> interfaces{};
  /// GLOO_SOCKET_IFNAME; empty: not set.
  std::string gloo_interface{};
  /// The address from which it talks to the others: others are given it.
  std::string own_address{};
  std::string own_address_trouble{};
  /// What the name of the place where the machines meet stands for here.
  std::vector<std::string> meeting_addresses{};
  std::string meeting_trouble{};
  /// Why no port can be bound there; empty: one can.
  std::string port_trouble{};

  std::string clock_source{};
  /// 0: there is none.
  std::uint64_t shm_bytes = 0;
  std::uint64_t shm_free_bytes = 0;
  std::string temporary_directory{};
  std::string temporary_trouble{};
  std::uint64_t temporary_free_bytes = 0;

  /// Limits of a process; nothing: unlimited.
  std::optional<std::uint64_t> open_files{};
  std::optional<std::uint64_t> processes{};
  std::optional<std::uint64_t> locked_memory_bytes{};
  std::optional<std::uint64_t> core_bytes{};
  /// What the control group leaves.
  std::optional<std::uint64_t> group_processes_left{};

  int processors = 0;
  /// The time that the control group grants, in processors.
  std::optional<double> processor_quota{};
  std::uint64_t memory_bytes = 0;
  std::uint64_t memory_available_bytes = 0;
  std::uint64_t swap_bytes = 0;
  int overcommit_memory = 0;

  std::string kernel{};
  std::string lockstep_version{};
  /// Of the file of `lockstep`.
  std::string lockstep_fingerprint{};
  int gpus = 0;
  std::string gpu_driver{};
  bool has_infiniband = false;
  ProgramFacts program{};
  PythonFacts python{};
  bool operator==(const MachineFacts&) const = default;
};

/// How one machine fared when it called another.
struct ReachFacts {
  /// The place of the other among the machines.
  std::size_t target = 0;
  std::string address{};
  /// Empty: it answered.
  std::string trouble{};
  /// The shortest of some, there and back.
  double round_trip_us = 0;
  /// How far the other's wall clock is ahead.
  double clock_ahead_us = 0;
  /// The address from which it was called.
  std::string from{};
  bool operator==(const ReachFacts&) const = default;
};

/// What one machine tells of its calls.
struct ReachReport {
  /// Why it could not listen; empty: it could.
  std::string listen_trouble{};
  std::vector<ReachFacts> calls{};
  bool operator==(const ReachReport&) const = default;
};

/// As one line of JSON, and back; nothing for anything else.
std::string encode(const MachineFacts& facts);
std::string encode(const ReachReport& report);
std::optional<MachineFacts> decode_machine_facts(std::string_view text);
std::optional<ReachReport> decode_reach_report(std::string_view text);

/// Whom a machine calls.
struct ReachTarget {
  std::size_t machine = 0;
  std::vector<std::string> addresses{};
  std::uint16_t port = 0;
  bool operator==(const ReachTarget&) const = default;
};
/// What a machine is told of the others.
struct ReachPlan {
  std::size_t own = 0;
  /// That it listens at.
  std::uint16_t port = 0;
  /// What no other plan has: who answers with another is of another.
  std::string token{};
  std::vector<ReachTarget> targets{};
  bool operator==(const ReachPlan&) const = default;
};
std::string encode(const ReachPlan& plan);
std::optional<ReachPlan> decode_reach_plan(std::string_view text);

}  // namespace lockstep::inline internal
