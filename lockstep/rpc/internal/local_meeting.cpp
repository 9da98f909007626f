#include "lockstep/rpc/internal/local_meeting.h"

#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/random_id.h"
#include "lockstep/comm/internal/backend_choice.h"
#include "lockstep/os/socket/unix_socket.h"

namespace lockstep::rpc::inline internal {
namespace {

bool share_a_machine(const WorkerDescription& one, const WorkerDescription& other) {
  return one.machine == other.machine && !one.device_maps.contains(other.name) &&
         !other.device_maps.contains(one.name);
}

// This worker's end of a socket, whose other end goes to who listens there.
UniqueFd offer_socket(const std::string& listener, std::uint64_t token, const Deadline& deadline) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw SystemError("making a Unix socket", errno);
  }
  UniqueFd own(ends[0]);
  const UniqueFd other(ends[1]);
  send_fd(connect_abstract(listener, deadline).get(), token, other.get());
  return own;
}

[[noreturn]] void refuse(const std::vector<WorkerDescription>& cards, int worker,
                         const std::string& why) {
  throw CommError(concat("rpc::init: connecting to worker '",
                         cards[static_cast<std::size_t>(worker)].name, "' (rank ", worker,
                         ") of this machine: ", why,
                         "; if processes of this machine cannot reach each other, set a different "
                         "LOCKSTEP_MEMORY_DOMAIN for each"));
}

}  // namespace

LocalMeeting::LocalMeeting()
    : name_(concat("lockstep-rpc-", random_id())),
      token_(random_number()),
      listener_(listen_abstract(name_)) {}

void LocalMeeting::describe(WorkerDescription& card) const {
  card.machine = concat(own_memory_domain(), " of user ", ::geteuid());
  card.local_name = name_;
  card.local_token = token_;
}

std::unordered_map<int, UniqueFd> LocalMeeting::connect(const ProcessGroup& group,
                                                        const std::vector<WorkerDescription>& cards,
                                                        const Deadline& deadline) {
  const int rank = group.rank();
  const auto card_of = [&](int worker) -> const WorkerDescription& {
    return cards[static_cast<std::size_t>(worker)];
  };
  std::unordered_map<int, UniqueFd> sockets;
  std::unordered_map<std::uint64_t, int> expected;  // those of higher ranks, by their tokens
  std::optional<std::pair<int, std::string>> failed;
  for (int worker = 0; worker < group.world_size(); ++worker) {
    if (worker == rank || !share_a_machine(card_of(rank), card_of(worker))) continue;
    if (worker > rank) {
      expected.emplace(card_of(worker).local_token, worker);
      continue;
    }
    try {
      sockets.emplace(worker, offer_socket(card_of(worker).local_name, token_, deadline));
    } catch (const SystemError& error) {
      failed = {worker, error.what()};
    }
  }
  // Then all offers are there, and nobody is waited for. Of one that has died this tells first.
  group.barrier(
      {.timeout = deadline.remaining() + std::chrono::milliseconds(1), .name = "rpc::init"});
  if (failed) refuse(cards, failed->first, failed->second);
  const Deadline now = Deadline::after(std::chrono::milliseconds(0));
  while (!expected.empty()) {
    const UniqueFd offer = accept_same_user(listener_.get(), now);
    if (!offer.valid()) refuse(cards, expected.begin()->second, "it sent no socket");
    try {
      ReceivedFd received = receive_fd(offer.get(), now);
      const auto found = expected.find(received.number);
      if (found == expected.end()) continue;
      sockets.emplace(found->second, std::move(received.fd));
      expected.erase(found);
    } catch (const Error&) {  // It is no worker.
    }
  }
  listener_.reset();
  return sockets;
}

}  // namespace lockstep::rpc::inline internal
