#include "tools/doctor/reach.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <list>
#include <map>
#include <set>
#include <sstream>
#include <system_error>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/socket/poll_timeout.h"
#include "lockstep/os/socket/tcp_socket.h"
#include "lockstep/record/internal/wall_seconds.h"

namespace lockstep::inline internal {
namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

constexpr milliseconds kRetryAfter{50};
// The shortest round trip of these counts.
constexpr int kRounds = 5;
constexpr std::size_t kLongestLine = 256;
constexpr std::size_t kMostVisitors = 1'024;

double wall_us() {
  return wall_seconds() * 1e6;
}

// A caller sends "<token> <own index>\n" kRounds times; each is answered by
// "<token> <own index> <wall clock in us>\n".
struct Visitor {
  UniqueFd socket;
  std::string text{};
};

class Call {
 public:
  Call(const ReachPlan& plan, const ReachTarget& target, const std::string& address)
      : plan_(plan), port_(target.port) {
    facts_ = {.target = target.machine, .address = address, .trouble = "no answer"};
  }

  bool answered() const { return facts_.trouble.empty(); }
  const ReachFacts& facts() const { return facts_; }
  pollfd await() const {
    return {socket_.get(), static_cast<short>(connecting_ ? POLLOUT : POLLIN), 0};
  }
  Clock::time_point retry_at() const {
    return socket_.valid() ? Clock::time_point::max() : retry_at_;
  }

  void begin() {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int status =
        ::getaddrinfo(facts_.address.c_str(), std::to_string(port_).c_str(), &hints, &found);
    if (status != 0) return fail(::gai_strerror(status));
    socket_ = UniqueFd(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int result = ::connect(socket_.get(), found->ai_addr, found->ai_addrlen);
    const int error = errno;
    ::freeaddrinfo(found);
    connecting_ = true;
    rounds_ = 0;
    if (result != 0 && error != EINPROGRESS) fail_by(error);
  }

  void handle(short events) {
    if (events == 0 || !socket_.valid()) return;
    if (connecting_) {
      int error = 0;
      socklen_t length = sizeof(error);
      ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      if (error != 0) return fail_by(error);
      connecting_ = false;
      const int on = 1;
      ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      return ask();
    }
    char line[kLongestLine];
    const ssize_t size = ::recv(socket_.get(), line, sizeof(line), 0);
    if (size <= 0) return fail_by(size == 0 ? ECONNRESET : errno);
    take({line, static_cast<std::size_t>(size)});
  }

 private:
  void ask() {
    asked_ = Clock::now();
    asked_wall_us_ = wall_us();
    const std::string line = concat(plan_.token, " ", plan_.own, "\n");
    if (::send(socket_.get(), line.data(), line.size(), MSG_NOSIGNAL) < 0) fail_by(errno);
  }

  // Answers are so short that they come in one piece.
  void take(const std::string& line) {
    std::istringstream words(line);
    std::string token;
    std::size_t machine = 0;
    double their_wall_us = 0;
    words >> token >> machine >> their_wall_us;
    if (!words || token != plan_.token || machine != facts_.target) {
      return fail("another machine or program answers there");
    }
    const double took = std::chrono::duration<double, std::micro>(Clock::now() - asked_).count();
    if (rounds_ == 0 || took < facts_.round_trip_us) {
      facts_.round_trip_us = took;
      facts_.clock_ahead_us = their_wall_us - (asked_wall_us_ + took / 2);
    }
    if (++rounds_ < kRounds) return ask();
    facts_.trouble.clear();
    socket_.reset();
    retry_at_ = Clock::time_point::max();
  }

  void fail_by(int error) { fail(std::generic_category().message(error)); }
  void fail(const std::string& trouble) {
    facts_.trouble = trouble;
    socket_.reset();
    retry_at_ = Clock::now() + kRetryAfter;
  }

  const ReachPlan& plan_;
  const std::uint16_t port_;
  ReachFacts facts_;
  UniqueFd socket_;
  bool connecting_ = false;
  int rounds_ = 0;
  Clock::time_point asked_{};
  double asked_wall_us_ = 0;
  Clock::time_point retry_at_{};
};

class Reaching {
 public:
  explicit Reaching(const ReachPlan& plan) : plan_(plan) {
    for (const ReachTarget& target : plan.targets) {
      for (const std::string& address : target.addresses) {
        calls_.emplace_back(plan, target, address);
      }
      awaited_.insert(target.machine);
    }
    try {
      listening_ = listen_everywhere();
    } catch (const Error& error) {
      report_.listen_trouble = error.what();
      awaited_.clear();
    }
  }

  ReachReport run(const Deadline& deadline) {
    while (!deadline.passed() && !done()) step(deadline);
    // A machine that still calls this one at another address may finish.
    const Deadline last = Deadline::after(std::min(milliseconds(200), deadline.remaining()));
    while (!visitors_.empty() && !last.passed()) step(last);
    for (const Call& call : calls_) report_.calls.push_back(call.facts());
    return std::move(report_);
  }

 private:
  // All of this machine's addresses, of both kinds.
  UniqueFd listen_everywhere() const {
    UniqueFd socket;
    try {
      socket = bind_tcp("::", plan_.port);
    } catch (const SystemError& error) {
      if (error.errno_value() == EADDRINUSE) throw;
      socket = bind_tcp("0.0.0.0", plan_.port);
    }
    constexpr int kBacklog = 512;
    if (::listen(socket.get(), kBacklog) != 0) throw SystemError("listen", errno);
    return socket;
  }

  // One address of each machine is enough, but whether the others answer is of interest, too: they
  // get a moment more.
  bool done() {
    std::set<std::size_t> reached;
    bool all = true;
    for (const Call& call : calls_) {
      if (call.answered()) reached.insert(call.facts().target);
      all = all && call.answered();
    }
    const bool enough =
        awaited_.empty() && std::ranges::all_of(plan_.targets, [&](const auto& target) {
          return reached.contains(target.machine);
        });
    if (!enough) return false;
    if (!enough_since_) enough_since_ = Clock::now();
    constexpr milliseconds kOtherAddresses{1'000};
    return all || Clock::now() - *enough_since_ > kOtherAddresses;
  }

  void step(const Deadline& deadline) {
    std::vector<pollfd> ready = {{listening_.get(), POLLIN, 0}};
    Clock::time_point wake = std::min(deadline.instant(), Clock::now() + kRetryAfter);
    for (Call& call : calls_) {
      if (!call.answered() && call.retry_at() <= Clock::now()) call.begin();
      ready.push_back(call.await());
    }
    for (const Visitor& visitor : visitors_) ready.push_back({visitor.socket.get(), POLLIN, 0});
    ::poll(ready.data(), ready.size(), poll_timeout(Deadline(wake)));
    std::size_t next = 1;
    for (Call& call : calls_) call.handle(ready[next++].revents);
    for (auto visitor = visitors_.begin(); visitor != visitors_.end();) {
      const bool stays = ready[next++].revents == 0 || answer(*visitor);
      visitor = stays ? std::next(visitor) : visitors_.erase(visitor);
    }
    if (ready[0].revents != 0) accept();
  }

  void accept() {
    UniqueFd socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid() || visitors_.size() >= kMostVisitors) return;
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    visitors_.push_back({std::move(socket)});
  }

  // False when the visitor has hung up, or belongs to another job.
  bool answer(Visitor& visitor) {
    char part[kLongestLine];
    const ssize_t size = ::recv(visitor.socket.get(), part, sizeof(part), 0);
    if (size <= 0) return size < 0 && (errno == EAGAIN || errno == EINTR);
    visitor.text.append(part, static_cast<std::size_t>(size));
    const auto end = visitor.text.find('\n');
    if (end == std::string::npos) return visitor.text.size() < kLongestLine;
    std::istringstream words(visitor.text.substr(0, end));
    visitor.text.erase(0, end + 1);
    std::string token;
    std::size_t machine = 0;
    if (!(words >> token >> machine) || token != plan_.token) return false;
    std::ostringstream line;
    line.precision(20);
    line << plan_.token << " " << plan_.own << " " << wall_us() << "\n";
    const std::string text = line.str();
    if (::send(visitor.socket.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0) return false;
    if (++heard_[machine] >= kRounds) awaited_.erase(machine);
    return true;
  }

  const ReachPlan& plan_;
  UniqueFd listening_;
  std::list<Call> calls_;
  std::list<Visitor> visitors_;
  /// Machines that have yet to call.
  std::set<std::size_t> awaited_;
  std::map<std::size_t, int> heard_;
  std::optional<Clock::time_point> enough_since_;
  ReachReport report_;
};

// The one that it gives to the others comes first.
std::vector<std::string> addresses_for_others(const MachineFacts& facts) {
  std::vector<std::string> addresses;
  if (!facts.own_address.empty()) addresses.push_back(facts.own_address);
  for (const InterfaceFacts& each : facts.interfaces) {
    const bool known = std::ranges::find(addresses, each.address) != addresses.end();
    if (each.is_up && !each.is_loopback && !known) addresses.push_back(each.address);
  }
  return addresses;
}

}  // namespace

ReachReport reach(const ReachPlan& plan, const Deadline& deadline) {
  return Reaching(plan).run(deadline);
}

ReachPlan reach_plan(const std::vector<ExaminedMachine>& machines, std::size_t machine,
                     const std::vector<std::uint16_t>& ports, const std::string& token) {
  ReachPlan plan{.own = machine, .port = ports[machine], .token = token};
  for (std::size_t other = 0; other < machines.size(); ++other) {
    if (other == machine || !machines[other].facts) continue;
    plan.targets.push_back({.machine = other,
                            .addresses = addresses_for_others(*machines[other].facts),
                            .port = ports[other]});
  }
  return plan;
}

}  // namespace lockstep::inline internal
