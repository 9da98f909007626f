#include "lockstep/rpc/internal/local_link.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <sys/epoll.h>
#include <sys/socket.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/error_text.h"
#include "lockstep/os/socket/passed_fd.h"

namespace lockstep::rpc::inline internal {
namespace {

// No more than the system allows. What is in the socket its reader takes without a switch of
// threads.
constexpr int kSocketBuffer = 1 << 20;
// While its sender goes on one call could read for long.
constexpr std::size_t kMostAtOnce = std::size_t{4} << 20;
constexpr std::size_t kMostParts = 64;

struct Parts {
  std::array<iovec, kMostParts> parts{};
  std::size_t count = 0;
  std::size_t to_skip = 0;

  void add(const void* data, std::size_t size) {
    if (to_skip >= size) {
      to_skip -= size;
    } else if (count < parts.size()) {
      parts[count++] = {.iov_base = static_cast<char*>(const_cast<void*>(data)) + to_skip,
                        .iov_len = size - to_skip};
      to_skip = 0;
    }
  }
};

}  // namespace

LocalLink::LocalLink(int rank, UniqueFd socket, int poll_set, std::size_t most_bytes)
    : rank_(rank), poll_set_(poll_set), reader_(most_bytes), socket_(std::move(socket)) {
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDBUF, &kSocketBuffer, sizeof kSocketBuffer);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = static_cast<std::uint64_t>(rank_)}};
  if (::epoll_ctl(poll_set_, EPOLL_CTL_ADD, socket_.get(), &event) != 0) {
    throw SystemError("rpc: adding a connection to an epoll set", errno);
  }
}

bool LocalLink::send(OutgoingFrame frame) {
  const MutexLock lock(mutex_);
  if (!socket_.valid()) return false;
  for (const std::uint64_t number : blocks_.drop_idle()) {
    enqueue(to_outgoing({.kind = Frame::Kind::kDrop, .id = static_cast<std::int64_t>(number)}));
  }
  enqueue(std::move(frame));
  return true;
}

void LocalLink::enqueue(OutgoingFrame frame) {
  if (queue_.empty() && write(frame)) return;
  queue_.push_back(std::move(frame));
  if (queue_.size() == 1) watch(true);
}

bool LocalLink::forget(std::int64_t id) {
  const MutexLock lock(mutex_);
  return std::erase_if(queue_, [id](const OutgoingFrame& frame) {
           return frame.sent == 0 && frame.kind == Frame::Kind::kRequest && frame.id == id;
         }) > 0;
}

void LocalLink::go_on() {
  const MutexLock lock(mutex_);
  while (!queue_.empty()) {
    if (!write(queue_.front())) return;
    queue_.pop_front();
  }
  watch(false);
}

void LocalLink::watch(bool for_room) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = static_cast<std::uint64_t>(rank_)}};
  if (for_room) event.events |= EPOLLOUT;
  if (socket_.valid()) ::epoll_ctl(poll_set_, EPOLL_CTL_MOD, socket_.get(), &event);
}

// Whether nothing of it is left to be sent.
bool LocalLink::write(OutgoingFrame& frame) {
  for (;;) {
    Parts parts{.to_skip = frame.sent};
    parts.add(frame.head.data(), frame.head.size());
    parts.add(frame.bytes.data(), frame.bytes.size());
    for (const at::Tensor& tensor : frame.data) parts.add(tensor.const_data_ptr(), tensor.nbytes());
    if (parts.count == 0) return true;
    msghdr message{};
    message.msg_iov = parts.parts.data();
    message.msg_iovlen = parts.count;
    PassedFds files;
    for (const Loan& loan : frame.loans) {
      if (loan.file().valid()) files.add(loan.file().get());
    }
    files.send_with(message);
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      frame.sent += static_cast<std::size_t>(sent);
      for (Loan& loan : frame.loans) loan.hand_over();
      frame.loans.clear();
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else if (errno != EINTR) {
      // What follows would be read as the rest of this one. Who polls sees to the end.
      ::shutdown(socket_.get(), SHUT_RDWR);
      return true;
    }
  }
}

LocalLink::Received LocalLink::receive(Turn turn, const std::function<void(Frame)>& take) {
  if (turn == Turn::kWaitFor) {
    reading_.lock();
  } else if (!reading_.try_lock()) {
    return Received::kNothing;
  }
  const MutexLock lock(reading_, std::adopt_lock);
  if (is_broken_ || !socket_.valid()) return Received::kEnd;
  std::span<char> room = reader_.next();
  room = room.first(std::min(room.size(), kMostAtOnce));
  iovec part{.iov_base = room.data(), .iov_len = room.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  PassedFds files;
  files.receive_with(message);
  const ssize_t received = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received >= 0) {
    for (UniqueFd& file : PassedFds::take(message)) reader_.add_file(std::move(file));
  }
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    return Received::kNothing;
  }
  if (received <= 0) return Received::kEnd;
  try {
    reader_.advance(static_cast<std::size_t>(received), take);
    return Received::kSome;
  } catch (const std::exception& error) {
    is_broken_ = true;
    log(LogLevel::kWarning, concat("rpc: the connection to the worker of rank ", rank_,
                                   " is closed after an invalid message: ", error_text(error)));
    ::shutdown(socket_.get(), SHUT_RDWR);  // So that who polls sees to it.
    return Received::kEnd;
  }
}

void LocalLink::close() {
  const MutexLock reading(reading_);
  const MutexLock lock(mutex_);
  queue_.clear();
  blocks_.clear();
  // A copy of the socket in a forked process would keep it in the set.
  if (socket_.valid()) ::epoll_ctl(poll_set_, EPOLL_CTL_DEL, socket_.get(), nullptr);
  socket_.reset();
}

}  // namespace lockstep::rpc::inline internal
