#include "lockstep/comm/backends/shm/connect.h"

#include <algorithm>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/base/internal/random_id.h"
#include "lockstep/comm/internal/backend_factory.h"
#include "lockstep/comm/internal/store_wait.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/os/socket/unix_socket.h"

namespace lockstep::shm {
namespace {

constexpr const char* kAddressKey = "shm/address";
// How often who waits for a socket asks the store, which knows whether it is still to wait.
constexpr std::chrono::milliseconds kAskStoreEvery{50};

std::string ready_key(int rank) {
  return concat("shm/ready/", rank);
}

std::string acknowledged_key(int rank) {
  return concat("shm/acknowledged/", rank);
}

std::shared_ptr<Segment> map_segment(UniqueFd file, int rank, const Layout& layout) {
  auto segment = std::make_shared<Segment>(std::move(file), layout);
  segment->populate(layout.arena(rank), layout.populated_bytes());
  segment->map_heap(rank);
  return segment;
}

bool anybody_failed(c10d::Store& store, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string key = ready_key(rank);
    if (store.check({key}) && store.get_to_str(key) != "ok") return true;
  }
  return false;
}

Deadline earlier(const Deadline& deadline, std::chrono::milliseconds time) {
  const Deadline other = Deadline::after(time);
  return other.instant() < deadline.instant() ? other : deadline;
}

// Hands the segment's descriptor to every other rank; stops when one of them reports that it cannot
// come.
void serve(c10d::Store& store, int listener, int fd, std::uint64_t heap_bytes, int ranks,
           Deadline deadline) {
  for (int served = 1; served < ranks && !deadline.passed();) {
    const UniqueFd socket = accept_same_user(listener, earlier(deadline, kAskStoreEvery));
    if (socket.valid()) {
      send_fd(socket.get(), heap_bytes, fd);
      ++served;
    } else if (anybody_failed(store, ranks)) {
      return;
    }
  }
}

// Rank 0 may be stopped once it has offered its memory.
ReceivedFd receive_segment(c10d::Store& store, int socket, const Deadline& deadline) {
  while (!readable_by(socket, earlier(deadline, kAskStoreEvery)) && !deadline.passed()) {
    static_cast<void>(store.check({kAddressKey}));
  }
  return receive_fd(socket, deadline);
}

std::shared_ptr<Segment> open_segment(c10d::Store& store, int rank, int ranks,
                                      const std::string& group_name, Deadline deadline) {
  if (rank == 0) {
    // Its file takes memory, and a process address space, only where it is used.
    const Layout layout = Layout::for_memory(ranks, total_memory_bytes());
    UniqueFd file = make_memory_file(concat("lockstep ", group_name).substr(0, 200).c_str(),
                                     layout.segment_bytes());
    auto segment = map_segment(std::move(file), rank, layout);
    const std::string name = "lockstep-" + random_id();
    const UniqueFd listener = listen_abstract(name);
    store.set(kAddressKey, name);
    serve(store, listener.get(), segment->file(), layout.heap_bytes(), ranks, deadline);
    return segment;
  }
  const auto missing = wait_for_keys(store, {kAddressKey}, deadline);
  if (!missing.empty()) throw TimeoutError("rank 0 did not publish its shared memory in time");
  const std::string name = store.get_to_str(kAddressKey);
  if (name.empty()) throw BackendUnavailable("rank 0 could not create shared memory");
  const UniqueFd socket = connect_abstract(name);
  ReceivedFd received = receive_segment(store, socket.get(), deadline);
  return map_segment(std::move(received.fd), rank, Layout(ranks, received.number));
}

// The store may be gone with rank 0, so this stays until its peers know what is the matter.
void stay_until_all_have_heard(c10d::Store& store, int rank, int ranks, Deadline deadline) {
  constexpr std::chrono::seconds kPatience{5};
  store.set(acknowledged_key(rank), "yes");
  if (rank != 0) return;
  std::vector<std::string> keys;
  for (int peer = 0; peer < ranks; ++peer) keys.push_back(acknowledged_key(peer));
  wait_for_keys(store, keys, earlier(deadline, kPatience));
}

// Every rank says how it went, and hears how it went with the others.
void agree(c10d::Store& store, int rank, int ranks, const std::string& outcome,
           const std::string& group_name, const std::vector<int>& numbers, Deadline deadline) {
  const auto number_of = [&](int of_rank) {
    return numbers.empty() ? of_rank : numbers[static_cast<std::size_t>(of_rank)];
  };
  store.set(ready_key(rank), outcome);
  std::vector<std::string> keys;
  for (int peer = 0; peer < ranks; ++peer) keys.push_back(ready_key(peer));
  auto missing = wait_for_keys(store, keys, deadline);
  if (!missing.empty()) {
    for (int& peer : missing) peer = number_of(peer);
    throw TimeoutError(concat("connecting group '", group_name, "' on rank ", number_of(rank),
                              ": rank", missing.size() > 1 ? "s " : " ", join_numbers(missing),
                              " did not join in time; check their logs"),
                       {.operation = "connect",
                        .group = group_name,
                        .own_rank = number_of(rank),
                        .ranks = missing});
  }
  for (int peer = 0; peer < ranks; ++peer) {
    const std::string theirs = store.get_to_str(keys[static_cast<std::size_t>(peer)]);
    if (theirs != "ok") {
      stay_until_all_have_heard(store, rank, ranks, deadline);
      throw BackendUnavailable(
          concat("group '", group_name, "' cannot share memory: rank ", number_of(peer), ": "),
          theirs);
    }
  }
}

// What all ranks are to know of. Whatever else a wait ends with is this rank's own.
bool keeps_from_sharing(const Error& error) {
  return dynamic_cast<const SystemError*>(&error) != nullptr ||
         dynamic_cast<const TimeoutError*>(&error) != nullptr ||
         dynamic_cast<const BackendUnavailable*>(&error) != nullptr;
}

constexpr const char* kPlacementKey = "shm/placement";
constexpr std::chrono::milliseconds kMostTime{20};

}  // namespace

std::unique_ptr<Engine> connect(c10d::Store& store, int rank, int ranks,
                                const std::string& group_name, const Engine::Options& options,
                                Deadline deadline) {
  static_assert(kMostRanks == kMostShmRanks);
  if (ranks > kMostRanks) {
    throw BackendUnavailable(concat("group '", group_name, "' cannot share memory: it has ", ranks,
                                    " ranks, at most ", kMostRanks, " can; use gloo"));
  }
  std::unique_ptr<Engine> engine;
  std::string outcome = "ok";
  try {
    engine = std::make_unique<Engine>(open_segment(store, rank, ranks, group_name, deadline), rank,
                                      group_name, options);
  } catch (const Error& error) {
    if (!keeps_from_sharing(error)) throw;
    outcome = error.what();
    if (rank == 0) store.set(kAddressKey, std::string());
  }
  failpoint("connect.reached");
  agree(store, rank, ranks, outcome, group_name, options.numbers, deadline);
  return engine;
}

Placement measure_placement(Team& team, c10d::Store& store, Deadline deadline) {
  if (team.ranks() == 1) return Placement::kUnknown;
  const auto end = Deadline::after(std::min(kMostTime, deadline.remaining()));
  if (team.rank() == 0) {
    const auto round_trip_ns = ping(team.ping_line(), kPingRounds, end);
    const Placement placement =
        round_trip_ns ? classify_round_trip(*round_trip_ns) : Placement::kUnknown;
    store.set(kPlacementKey, std::string(1, static_cast<char>('0' + static_cast<int>(placement))));
    return placement;
  }
  if (team.rank() == 1) pong(team.ping_line(), kPingRounds, end);
  if (!wait_for_keys(store, {kPlacementKey}, deadline).empty()) {
    throw TimeoutError("rank 0 did not publish the placement of the ranks in time",
                       {.operation = "connect",
                        .group = team.group_name(),
                        .own_rank = team.number_of(team.rank()),
                        .ranks = {team.number_of(0)}});
  }
  return static_cast<Placement>(store.get_to_str(kPlacementKey)[0] - '0');
}

}  // namespace lockstep::shm
