#include "tools/doctor/doctor_meeting.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <boost/asio/ip/tcp.hpp>
#include <poll.h>
#include <sys/socket.h>

#include "launcher/cli/read_job_secret.h"
#include "launcher/cli/run_job.h"
#include "launcher/cli/run_options.h"
#include "launcher/command_line/endpoint.h"
#include "launcher/command_line/program_beside.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/random_id.h"
#include "lockstep/job/internal/job_port.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/os/socket/poll_timeout.h"
#include "lockstep/os/socket/tcp_socket.h"
#include "tools/doctor/gather_facts.h"
#include "tools/doctor/judge_machines.h"
#include "tools/doctor/reach.h"

namespace lockstep::inline internal {
namespace {

using boost::asio::ip::tcp;
using std::chrono::milliseconds;

// Counted from the end of the rendezvous.
constexpr milliseconds kPatience{30'000};
constexpr std::size_t kLongestReply = 1 << 20;

std::string read_line(std::istream& stream) {
  std::string line(kLongestReply, '\0');
  stream.getline(line.data(), static_cast<std::streamsize>(line.size()));
  // What was read includes the line's end.
  line.resize(stream.gcount() > 0 ? static_cast<std::size_t>(stream.gcount()) - 1 : 0);
  return line;
}

struct Member {
  std::unique_ptr<tcp::iostream> stream{};
  std::uint16_t port = 0;
  MachineFacts facts{};
};

// Outside the range from which the kernel takes ports for connections: nothing takes it meanwhile.
std::uint16_t port_for_calls() {
  constexpr int kMostTries = 100;
  for (int i = 0;; ++i) {
    const auto port = static_cast<std::uint16_t>(port_of_number(random_number()));
    try {
      return bound_port(bind_tcp("0.0.0.0", port).get());
    } catch (const SystemError&) {
      if (i == kMostTries) throw;
    }
  }
}

// With unique names.
std::vector<ExaminedMachine> machines_of(std::vector<MachineFacts> facts) {
  std::map<std::string, int> named;
  for (const MachineFacts& each : facts) ++named[each.host_name];
  std::vector<ExaminedMachine> machines;
  for (std::size_t i = 0; i < facts.size(); ++i) {
    const std::string& name = facts[i].host_name;
    machines.push_back(
        {.name = named[name] > 1 ? concat(name, " (machine ", i, ")") : name, .facts = facts[i]});
  }
  return machines;
}

// Rank 0: the others send it their facts, receive their plan, and send the report of their calls,
// over the socket of the job's store, which nothing else needs.
class Hub {
 public:
  Hub(int listening, std::size_t count, MachineFacts facts, milliseconds timeout)
      : members_(count), timeout_(timeout), listening_(listening) {
    members_[0] = {.port = port_for_calls(), .facts = std::move(facts)};
  }

  std::vector<Finding> run() {
    meet();
    std::vector<MachineFacts> facts;
    std::vector<std::uint16_t> ports;
    for (const Member& member : members_) {
      facts.push_back(member.facts);
      ports.push_back(member.port);
    }
    std::vector<ExaminedMachine> machines = machines_of(facts);
    const std::string token = random_id();
    for (std::size_t i = 1; i < members_.size(); ++i) {
      *members_[i].stream << encode(reach_plan(machines, i, ports, token)) << std::endl;
    }
    machines[0].reach = reach(reach_plan(machines, 0, ports, token), Deadline::after(timeout_));
    for (std::size_t i = 1; i < members_.size(); ++i) {
      machines[i].reach = decode<ReachReport>(read_line(*members_[i].stream));
    }
    // They have connected: the rendezvous host is right.
    const std::vector<Finding> findings = judge_machines(machines, "");
    for (std::size_t i = 1; i < members_.size(); ++i) {
      *members_[i].stream << json_of(findings) << std::flush;
      members_[i].stream->close();
    }
    return findings;
  }

 private:
  void meet() {
    if (::listen(listening_, SOMAXCONN) != 0) throw SystemError("listen", errno);
    const Deadline deadline = Deadline::after(kPatience);
    std::size_t there = 1;
    while (there < members_.size()) {
      pollfd ready{listening_, POLLIN, 0};
      if (deadline.passed() || ::poll(&ready, 1, poll_timeout(deadline)) == 0) {
        throw TimeoutError(concat(there, " of ", members_.size(),
                                  " machines connected: the others cannot reach ",
                                  env::text(env::kMasterAddr).value_or("this one")));
      }
      if (ready.revents != 0 && take()) ++there;
    }
  }

  bool take() {
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    const int socket =
        ::accept4(listening_, reinterpret_cast<sockaddr*>(&peer), &length, SOCK_CLOEXEC);
    if (socket < 0) return false;
    Member member{.stream = std::make_unique<tcp::iostream>()};
    member.stream->socket().assign(peer.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), socket);
    member.stream->expires_after(kPatience + timeout_);
    std::size_t rank = 0;
    std::istringstream words(read_line(*member.stream));
    const auto facts = decode<MachineFacts>(read_line(*member.stream));
    const bool good = (words >> rank >> member.port) && facts && rank > 0 &&
                      rank < members_.size() && !members_[rank].stream;
    if (!good) return false;
    member.facts = *facts;
    members_[rank] = std::move(member);
    return true;
  }

  std::vector<Member> members_;
  const milliseconds timeout_;
  const int listening_;
};

std::vector<Finding> report_to_hub(int rank, const MachineFacts& facts, milliseconds timeout) {
  const std::string host = env::text(env::kMasterAddr).value_or("");
  const auto port = static_cast<std::uint16_t>(env::integer(env::kMasterPort).value_or(0));
  wait_for_listener(host, port, Deadline::after(kPatience));
  tcp::iostream stream;
  stream.expires_after(2 * kPatience + timeout);
  stream.connect(host, std::to_string(port));
  const std::uint16_t own_port = port_for_calls();
  stream << rank << " " << own_port << "\n" << encode(facts) << std::endl;
  const auto plan = decode<ReachPlan>(read_line(stream));
  if (!plan) throw Error(concat("the machine at ", host, " ended before all machines connected"));
  stream << encode(reach(*plan, Deadline::after(timeout))) << std::endl;
  std::ostringstream rest;
  rest << stream.rdbuf();
  const auto findings = findings_of(rest.str());
  if (!findings) throw Error(concat("the machine at ", host, " ended before it sent the findings"));
  return *findings;
}

}  // namespace

std::optional<std::vector<Finding>> examine_by_meeting(const DoctorFlags& flags) {
  const TemporaryDirectory directory(temporary_folder(), "lockstep-doctor-");
  const std::string file = (directory.path() / "findings").string();
  RunFlags run;
  run.nnodes = flags.nnodes;
  run.rdzv_backend = "c10d";
  run.rdzv_endpoint = flags.rdzv_endpoint;
  run.rdzv_id = "lockstep-doctor";  // No job has it.
  run.local_addr = flags.local_addr;
  const std::string host = parse_endpoint(flags.rdzv_endpoint).host;
  // People start it on each machine.
  run.rdzv_conf = concat("join_timeout=", 6.0 * static_cast<double>(flags.timeout.count()) / 1000);
  run.program = {(program_folder() / "lockstep").string(), "doctor", concat("--meet=", file),
                 concat("--timeout=", static_cast<double>(flags.timeout.count()) / 1000),
                 concat("--towards=", host)};
  if (!flags.local_addr.empty()) run.program.push_back(concat("--local-addr=", flags.local_addr));
  if (!flags.program.empty()) run.program.insert(run.program.end(), {"--", flags.program});
  const LaunchOptions options =
      resolve_run_options(run, {.secret = read_job_secret(flags.secret_file)});
  if (run_job(options, UniqueFd()) != 0) return std::nullopt;
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return findings_of(text.str());
}

void take_part_in_meeting(const DoctorFlags& flags) {
  const int rank = env::integer(env::kRank).value_or(0);
  const MachineFacts facts = gather_facts({.towards = flags.towards,
                                           .own_address = flags.local_addr,
                                           .program = flags.program,
                                           .lockstep_version = LOCKSTEP_VERSION});
  std::vector<Finding> findings;
  if (rank == 0) {
    const auto listening = env::integer(env::kStoreListenFd);
    const auto count = static_cast<std::size_t>(env::integer(env::kWorldSize).value_or(1));
    if (!listening)
      throw UsageError("--meet is internal: lockstep doctor passes it to its own processes");
    findings = Hub(*listening, count, facts, flags.timeout).run();
  } else {
    findings = report_to_hub(rank, facts, flags.timeout);
  }
  std::ofstream file(flags.meet);
  file << json_of(findings) << std::flush;
  if (!file) throw SystemError(concat("write ", flags.meet), errno);
}

}  // namespace lockstep::inline internal
