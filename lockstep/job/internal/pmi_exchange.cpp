#include "lockstep/job/internal/pmi_exchange.h"

#include <array>
#include <cerrno>
#include <string_view>

#include <poll.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/pipe.h"
#include "lockstep/os/socket/poll_timeout.h"

namespace lockstep::inline internal {
namespace {

// PMI-1 has lines of at most 1,024 bytes.
constexpr std::size_t kLongestLine = std::size_t{64} << 10;

// One request a line, one reply a line: "cmd=name key=value key=value".
class PmiConnection {
 public:
  PmiConnection(std::string operation, int fd, int rank, const Deadline& deadline)
      : operation_(std::move(operation)), fd_(fd), rank_(rank), deadline_(deadline) {}

  // Returns the reply. `expected`: how it begins if all went well.
  std::string ask(const std::string& request, std::string_view expected) {
    if (!write_all(fd_, request + "\n", deadline_)) fail(request, "does not read it");
    std::string reply = read_line(request);
    if (!reply.starts_with(expected)) fail(request, concat("replied '", reply, "'"));
    return reply;
  }

 private:
  std::string read_line(const std::string& request) {
    auto end = std::string::npos;
    while ((end = read_.find('\n')) == std::string::npos) {
      pollfd waiting{fd_, POLLIN, 0};
      const int ready = ::poll(&waiting, 1, poll_timeout(deadline_));
      if (ready == 0 && deadline_.passed()) {
        throw TimeoutError({.operation = operation_, .own_rank = rank_},
                           concat("no reply of mpirun to '", request,
                                  "' in time; check the logs of the other ranks"));
      }
      if (ready < 0 && errno != EINTR) fail(request, "cannot be polled");
      if (ready <= 0) continue;
      std::array<char, 1024> piece;
      const auto size = ::read(fd_, piece.data(), piece.size());
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) fail(request, "closed the connection");
      if (read_.size() > kLongestLine) fail(request, "sent a reply that is too long");
      read_.append(piece.data(), static_cast<std::size_t>(size));
    }
    std::string line = read_.substr(0, end);
    read_.erase(0, end + 1);
    return line;
  }

  [[noreturn]] void fail(const std::string& request, std::string_view what) const {
    throw CommError({.operation = operation_, .own_rank = rank_},
                    concat("PMI request '", request, "': mpirun ", what,
                           "; set MASTER_ADDR and MASTER_PORT to avoid PMI"));
  }

  const std::string operation_;
  const int fd_;
  const int rank_;
  const Deadline deadline_;
  std::string read_;
};

// Of a reply: what follows "name=", up to the next space. Empty: not there.
std::string field(const std::string& reply, const std::string& name) {
  const std::string marked = concat(" ", name, "=");
  const auto begin = reply.find(marked);
  if (begin == std::string::npos) return "";
  const auto value = reply.substr(begin + marked.size());
  return value.substr(0, value.find(' '));
}

}  // namespace

std::string broadcast_by_pmi(const std::string& operation, int fd, int rank,
                             const std::string& text, const Deadline& deadline) {
  PmiConnection mpirun(operation, fd, rank, deadline);
  mpirun.ask("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init pmi_version=1");
  const auto space = field(mpirun.ask("cmd=get_my_kvsname", "cmd=my_kvsname"), "kvsname");
  const auto key = concat("kvsname=", space, " key=lockstep");
  if (rank == 0) mpirun.ask(concat("cmd=put ", key, " value=", text), "cmd=put_result rc=0");
  mpirun.ask("cmd=barrier_in", "cmd=barrier_out");
  auto told = field(mpirun.ask(concat("cmd=get ", key), "cmd=get_result rc=0"), "value");
  mpirun.ask("cmd=finalize", "cmd=finalize_ack");
  return told;
}

}  // namespace lockstep::inline internal
