#include "tools/doctor/judge_machines.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/socket/tcp_socket.h"

namespace lockstep::inline internal {
namespace {

using Level = Finding::Level;

std::string milliseconds_text(double microseconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g ms", microseconds / 1000);
  return text;
}

int own_mtu(const MachineFacts& facts) {
  const auto found =
      std::ranges::find(facts.interfaces, facts.own_address, &InterfaceFacts::address);
  return found == facts.interfaces.end() ? 0 : found->mtu;
}

class JudgeOfSeveral {
 public:
  JudgeOfSeveral(const std::vector<ExaminedMachine>& machines, std::string meeting)
      : machines_(machines), meeting_(std::move(meeting)) {}

  std::vector<Finding> run() {
    for (const ExaminedMachine& machine : machines_) each(machine);
    rendezvous();
    connections();
    for (std::size_t i = 0; i < machines_.size(); ++i) own_address(i);
    clocks();
    names();
    differences();
    return std::move(findings_);
  }

 private:
  /// The names of the machines that have a value.
  using Groups = std::map<std::string, std::string>;

  void add(Level level, const std::string& machine, const char* subject, const std::string& text,
           const std::string& cure = "") {
    findings_.push_back({level, machine, subject, text, cure});
  }

  void each(const ExaminedMachine& machine) {
    if (!machine.facts) return add(Level::kFail, machine.name, "machine", machine.trouble);
    const auto own = judge_machine(*machine.facts, machine.name, machines_.size() > 1);
    findings_.insert(findings_.end(), own.begin(), own.end());
    if (machine.reach && !machine.reach->listen_trouble.empty()) {
      add(Level::kFail, machine.name, "port", machine.reach->listen_trouble, "try again");
    }
  }

  // On the first machine its own name may resolve to loopback: it listens at all addresses then.
  void rendezvous() {
    if (meeting_.empty() || is_loopback_address(meeting_) || meeting_ == "localhost") return;
    for (std::size_t i = 0; i < machines_.size(); ++i) {
      if (!machines_[i].facts) continue;
      const MachineFacts& facts = *machines_[i].facts;
      const auto& addresses = facts.meeting_addresses;
      std::string trouble;
      if (!facts.meeting_trouble.empty()) {
        trouble = concat(" does not resolve: ", facts.meeting_trouble);
      } else if (i > 0 && std::ranges::all_of(addresses, is_loopback_address)) {
        trouble = concat(" resolves to ", addresses.empty() ? "nothing" : addresses.front(),
                         " there, which is that machine itself");
      }
      if (trouble.empty()) continue;
      add(Level::kFail, machines_[i].name, "rendezvous", meeting_ + trouble,
          concat("put its address into /etc/hosts there, or name it by its address"));
    }
  }

  bool has_reported(std::size_t machine) const { return machines_[machine].reach.has_value(); }

  // The call that succeeded, or nullptr; `troubles` gets those of the others.
  const ReachFacts* answered(std::size_t from, std::size_t to,
                             std::string* troubles = nullptr) const {
    const ReachFacts* result = nullptr;
    for (const ReachFacts& call : machines_[from].reach->calls) {
      if (call.target != to) continue;
      if (call.trouble.empty() && result == nullptr) result = &call;
      if (troubles == nullptr) continue;
      *troubles += concat(troubles->empty() ? "" : "; ", call.address, ": ", call.trouble);
    }
    return result;
  }

  template <class Visit>
  void for_each_pair(const Visit& visit) const {
    for (std::size_t a = 0; a < machines_.size(); ++a) {
      for (std::size_t b = 0; b < machines_.size(); ++b) {
        if (a != b && has_reported(a) && has_reported(b)) visit(a, b);
      }
    }
  }

  void connections() {
    double shortest_us = INFINITY;
    double longest_us = 0;
    bool all = true;
    for_each_pair([&](std::size_t a, std::size_t b) {
      std::string troubles;
      if (const ReachFacts* const call = answered(a, b, &troubles)) {
        shortest_us = std::min(shortest_us, call->round_trip_us);
        longest_us = std::max(longest_us, call->round_trip_us);
        return;
      }
      all = false;
      if (troubles.empty()) troubles = "it has no address for other machines";
      const std::string& from = machines_[a].name;
      const std::string& to = machines_[b].name;
      if (answered(b, a) != nullptr) {
        add(Level::kFail, from, "connections",
            concat("cannot connect to ", to, " (", troubles, "), but ", to, " can connect to it"),
            concat("let the firewall of ", to, ", and any between, accept connections from ",
                   from));
      } else if (a < b) {
        add(Level::kFail, from, "connections",
            concat("neither it nor ", to, " can connect to the other (", troubles, ")"),
            "they need a common network, and firewalls that accept all TCP ports between them");
      }
    });
    const auto count = std::ranges::count_if(
        machines_, [](const ExaminedMachine& machine) { return machine.reach.has_value(); });
    if (!all || count < 2) return;
    add(Level::kOk, "", "connections",
        concat("all ", count, " machines can connect to each other, round trip ",
               milliseconds_text(shortest_us),
               longest_us > shortest_us ? concat(" to ", milliseconds_text(longest_us)) : ""));
  }

  // Machine b may answer at another address than that which it gives to the others.
  void own_address(std::size_t b) {
    if (!machines_[b].facts) return;
    const std::string& own = machines_[b].facts->own_address;
    for (std::size_t a = 0; a < machines_.size(); ++a) {
      const ReachFacts* const other = a != b && has_reported(a) ? answered(a, b) : nullptr;
      if (other == nullptr) continue;
      for (const ReachFacts& call : machines_[a].reach->calls) {
        if (call.target != b || call.address != own || call.trouble.empty()) continue;
        return add(Level::kFail, machines_[b].name, "address",
                   concat("it gives ", own, " to the others, but ", machines_[a].name,
                          " cannot connect to that (", call.trouble, ")"),
                   concat("start its launcher with --local-addr=", other->address,
                          ", or correct what the rendezvous host resolves to there"));
      }
    }
  }

  void clocks() {
    constexpr double kFarApartUs = 60e6;
    double most_us = 0;
    std::string who;
    for_each_pair([&](std::size_t a, std::size_t b) {
      const ReachFacts* const call = answered(a, b);
      if (call == nullptr || std::abs(call->clock_ahead_us) <= std::abs(most_us)) return;
      most_us = call->clock_ahead_us;
      who = concat(machines_[b].name, " is ", milliseconds_text(std::abs(most_us)), " ",
                   most_us > 0 ? "ahead of " : "behind ", machines_[a].name);
    });
    if (who.empty()) return;
    const bool is_far = std::abs(most_us) > kFarApartUs;
    add(is_far ? Level::kWarn : Level::kOk, "", "wall clocks", concat("at most: ", who),
        is_far ? "a job works, but times in logs cannot be compared: run chrony or "
                 "systemd-timesyncd"
               : "");
  }

  template <class Value>
  Groups grouped(const Value& value) const {
    Groups groups;
    for (const ExaminedMachine& machine : machines_) {
      if (!machine.facts) continue;
      std::string& names = groups[concat(value(*machine.facts))];
      names += concat(names.empty() ? "" : ", ", machine.name);
    }
    return groups;
  }

  void names() {
    for (const auto& [name, machines] :
         grouped([](const MachineFacts& facts) { return facts.host_name; })) {
      if (machines.find(", ") == std::string::npos) continue;
      add(Level::kWarn, "", "host name", concat(machines, " are all named ", name),
          "logs cannot tell them apart: hostnamectl set-hostname");
    }
  }

  // Machines without a value are skipped. Returns whether all have one, and the same.
  bool same(Level level, const char* subject, const char* what, Groups groups, const char* cure) {
    const bool is_complete = groups.erase("") == 0;
    if (groups.size() < 2) return is_complete && !groups.empty();
    std::string text;
    for (const auto& [value, names] : groups) {
      text += concat(text.empty() ? what : ";", " ", value, " on ", names);
    }
    add(level, "", subject, text, cure);
    return false;
  }

  void differences() {
    const auto program = [](const MachineFacts& facts) {
      return facts.program.trouble.empty() ? facts.program.fingerprint : "";
    };
    const auto version = [](const MachineFacts& facts) { return facts.lockstep_version; };
    const auto build = [](const MachineFacts& facts) { return facts.lockstep_fingerprint; };
    const auto libtorch = [](const MachineFacts& facts) { return facts.program.libtorch_version; };
    const auto torch = [](const MachineFacts& facts) { return facts.python.torch_version; };
    same(Level::kWarn, "MTU", "differs:", grouped(own_mtu),
         "long messages may hang at a switch that drops them: set the smallest on all (ip link set "
         "DEVICE mtu N)");
    constexpr const char* kInstall = "install the same everywhere";
    if (same(Level::kFail, "lockstep", "versions differ:", grouped(version), kInstall) &&
        same(Level::kWarn, "lockstep", "builds differ:", grouped(build), kInstall)) {
      add(Level::kOk, "", "lockstep", "the same file on all");
    }
    if (same(Level::kWarn, "program", "files differ:", grouped(program),
             "ranks of different programs wait for each other until the timeout: copy one to "
             "all")) {
      add(Level::kOk, "", "program", "the same file on all");
    }
    constexpr const char* kLastBits = "results may differ in their last bits: install the same";
    same(Level::kWarn, "LibTorch", "versions differ:", grouped(libtorch), kLastBits);
    same(Level::kWarn, "Python", "versions of torch differ:", grouped(torch), kLastBits);
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
