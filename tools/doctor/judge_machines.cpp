#include "tools/doctor/judge_machines.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <set>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/socket/tcp_socket.h"
#include "tools/doctor/judge_machine.h"

namespace lockstep::inline internal {
namespace {

using Level = Finding::Level;

std::string milliseconds_text(double microseconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g ms", microseconds / 1000);
  return text;
}

class JudgeOfSeveral {
 public:
  JudgeOfSeveral(const std::vector<ExaminedMachine>& machines, std::string meeting)
      : machines_(machines), meeting_(std::move(meeting)) {}

  std::vector<Finding> run() {
    for (const ExaminedMachine& machine : machines_) each(machine);
    meeting();
    reach();
    names();
    packets();
    clocks();
    versions();
    program();
    return std::move(findings_);
  }

 private:
  void add(Level level, const std::string& machine, const char* subject, const std::string& text,
           const std::string& cure = "") {
    findings_.push_back({level, machine, subject, text, cure});
  }

  void each(const ExaminedMachine& machine) {
    if (!machine.facts) {
      add(Level::kFail, machine.name, "machine", machine.trouble);
      return;
    }
    const auto own = judge_machine(*machine.facts, machine.name, machines_.size() > 1);
    findings_.insert(findings_.end(), own.begin(), own.end());
    if (machine.reach && !machine.reach->listen_trouble.empty()) {
      add(Level::kFail, machine.name, "port", machine.reach->listen_trouble, "try again");
    }
  }

  // The first machine itself may have its name for loopback: it listens at all addresses then.
  void meeting() {
    if (meeting_.empty() || is_loopback_address(meeting_) || meeting_ == "localhost") return;
    for (std::size_t i = 0; i < machines_.size(); ++i) {
      if (!machines_[i].facts) continue;
      const MachineFacts& facts = *machines_[i].facts;
      const auto& addresses = facts.meeting_addresses;
      const std::string cure =
          concat("put its address into /etc/hosts there, or give an address instead of ", meeting_);
      if (!facts.meeting_trouble.empty()) {
        add(Level::kFail, machines_[i].name, "meeting place",
            concat(meeting_, " does not resolve: ", facts.meeting_trouble), cure);
      } else if (i > 0 && std::ranges::all_of(addresses, is_loopback_address)) {
        add(Level::kFail, machines_[i].name, "meeting place",
            concat(meeting_, " is ", addresses.empty() ? "nothing" : addresses.front(),
                   " there, which means that machine itself"),
            cure);
      }
    }
  }

  bool has_told(std::size_t machine) const { return machines_[machine].reach.has_value(); }

  std::vector<const ReachFacts*> calls(std::size_t from, std::size_t to) const {
    std::vector<const ReachFacts*> result;
    for (const ReachFacts& call : machines_[from].reach->calls) {
      if (call.target == to) result.push_back(&call);
    }
    return result;
  }

  const ReachFacts* answered(std::size_t from, std::size_t to) const {
    for (const ReachFacts* call : calls(from, to)) {
      if (call->trouble.empty()) return call;
    }
    return nullptr;
  }

  std::string troubles(std::size_t from, std::size_t to) const {
    std::string text;
    for (const ReachFacts* call : calls(from, to)) {
      text += concat(text.empty() ? "" : "; ", call->address, ": ", call->trouble);
    }
    return text.empty() ? "it has no address that others could call" : text;
  }

  void reach() {
    bool all = true;
    double shortest = INFINITY;
    double longest = 0;
    std::size_t count = 0;
    for (std::size_t a = 0; a < machines_.size(); ++a) {
      if (!has_told(a)) continue;
      ++count;
      for (std::size_t b = 0; b < machines_.size(); ++b) {
        if (a == b || !has_told(b)) continue;
        if (const ReachFacts* const call = answered(a, b)) {
          shortest = std::min(shortest, call->round_trip_us);
          longest = std::max(longest, call->round_trip_us);
        } else {
          all = false;
          unreached(a, b);
        }
      }
    }
    for (std::size_t b = 0; b < machines_.size(); ++b) told_address(b);
    if (!all || count < 2) return;
    add(Level::kOk, "", "connections",
        concat("all ", count, " machines reach each other, there and back in ",
               milliseconds_text(shortest),
               longest > shortest ? concat(" to ", milliseconds_text(longest)) : ""));
  }

  void unreached(std::size_t a, std::size_t b) {
    const std::string& from = machines_[a].name;
    const std::string& to = machines_[b].name;
    if (answered(b, a) != nullptr) {
      add(Level::kFail, from, "connections",
          concat("does not reach ", to, " (", troubles(a, b), "), though ", to, " reaches it"),
          concat("let ", to, "'s firewall, and any between, take connections from ", from));
    } else if (a < b) {
      add(Level::kFail, from, "connections",
          concat("and ", to, " do not reach each other (", troubles(a, b), ")"),
          "they need a network in common, and firewalls that let all TCP ports through between "
          "them");
    }
  }

  // What machine b tells the others, from where it talks to them.
  void told_address(std::size_t b) {
    if (!machines_[b].facts) return;
    const std::string& told = machines_[b].facts->own_address;
    for (std::size_t a = 0; a < machines_.size(); ++a) {
      const ReachFacts* const other = a != b && has_told(a) ? answered(a, b) : nullptr;
      if (other == nullptr) continue;
      for (const ReachFacts* call : calls(a, b)) {
        if (call->address != told || call->trouble.empty()) continue;
        add(Level::kFail, machines_[b].name, "address",
            concat("it would tell the others ", told, ", at which ", machines_[a].name,
                   " does not reach it (", call->trouble, ")"),
            concat("start its launcher with --local-addr=", other->address,
                   ", or correct what the name of the meeting place stands for there"));
        return;
      }
    }
  }

  // Calls `value` for all machines; the machines by what it gives.
  template <class Value>
  std::map<Value, std::string> grouped(
      const std::function<Value(const MachineFacts&)>& value) const {
    std::map<Value, std::string> groups;
    for (const ExaminedMachine& machine : machines_) {
      if (!machine.facts) continue;
      std::string& names = groups[value(*machine.facts)];
      names += concat(names.empty() ? "" : ", ", machine.name);
    }
    return groups;
  }

  template <class Value>
  static std::string told(const std::map<Value, std::string>& groups) {
    std::string text;
    for (const auto& [value, names] : groups) {
      text += concat(text.empty() ? "" : "; ", value, " on ", names);
    }
    return text;
  }

  void names() {
    const auto groups =
        grouped<std::string>([](const MachineFacts& facts) { return facts.host_name; });
    for (const auto& [name, machines] : groups) {
      if (machines.find(", ") == std::string::npos) continue;
      add(Level::kWarn, "", "host name", concat(machines, " are all named ", name),
          "reports could not tell them apart: hostnamectl set-hostname");
    }
  }

  void packets() {
    const auto groups = grouped<int>([](const MachineFacts& facts) {
      for (const InterfaceFacts& each : facts.interfaces) {
        if (each.address == facts.own_address) return each.mtu;
      }
      return 0;
    });
    if (groups.size() < 2) return;
    add(Level::kWarn, "", "MTU", concat("is not the same: ", told(groups)),
        "long messages may hang where a switch drops what is too long: give all the smallest (ip "
        "link "
        "set DEVICE mtu N)");
  }

  void clocks() {
    constexpr double kFarApartUs = 60e6;
    double most = 0;
    std::string who;
    for (std::size_t a = 0; a < machines_.size(); ++a) {
      for (std::size_t b = 0; has_told(a) && b < machines_.size(); ++b) {
        const ReachFacts* const call = b == a ? nullptr : answered(a, b);
        if (call == nullptr || std::abs(call->clock_ahead_us) <= std::abs(most)) continue;
        most = call->clock_ahead_us;
        who = concat(machines_[b].name, " is ", milliseconds_text(std::abs(most)), " ",
                     most > 0 ? "ahead of " : "behind ", machines_[a].name);
      }
    }
    if (who.empty()) return;
    if (std::abs(most) > kFarApartUs) {
      add(Level::kWarn, "", "wall clocks", who,
          "a job does not mind, but times in logs cannot be compared: run chrony or "
          "systemd-timesyncd");
    } else {
      add(Level::kOk, "", "wall clocks", concat("at most: ", who, ", of which a job has no need"));
    }
  }

  void versions() {
    const auto groups =
        grouped<std::string>([](const MachineFacts& facts) { return facts.lockstep_version; });
    const auto builds =
        grouped<std::string>([](const MachineFacts& facts) { return facts.lockstep_fingerprint; });
    if (groups.size() > 1) {
      add(Level::kFail, "", "lockstep", concat("the versions differ: ", told(groups)),
          "install the same everywhere");
    } else if (builds.size() > 1) {
      add(Level::kWarn, "", "lockstep", concat("the builds differ: ", told(builds)),
          "install the same everywhere");
    } else if (!builds.empty()) {
      add(Level::kOk, "", "lockstep", "the same file on all");
    }
  }

  void program() {
    const auto programs = grouped<std::string>([](const MachineFacts& facts) {
      return facts.program.trouble.empty() ? facts.program.fingerprint : "";
    });
    const bool missing = programs.contains("");
    if (programs.size() - (missing ? 1 : 0) > 1) {
      add(Level::kWarn, "", "program", concat("its files differ: ", told(programs)),
          "ranks of different programs wait for each other for ever: copy one to all");
    } else if (!programs.empty() && !missing) {
      add(Level::kOk, "", "program", "the same file on all");
    }
    for (const bool python : {false, true}) {
      const auto torch = grouped<std::string>([&](const MachineFacts& facts) {
        return python ? facts.python.torch_version : facts.program.libtorch_version;
      });
      if (torch.size() < 2 || torch.contains("")) continue;
      add(Level::kWarn, "", python ? "Python" : "LibTorch", concat("torch differs: ", told(torch)),
          "results may differ in their last bits: install the same");
    }
  }

  const std::vector<ExaminedMachine>& machines_;
  const std::string meeting_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> judge_machines(const std::vector<ExaminedMachine>& machines,
                                    const std::string& meeting) {
  return JudgeOfSeveral(machines, meeting).run();
}

}  // namespace lockstep::inline internal
