#include "lockstep/rpc/internal/local_transport.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <limits>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/error_text.h"
#include "lockstep/os/socket/poll_timeout.h"
#include "lockstep/rpc/internal/transport_error.h"

namespace lockstep::rpc::inline internal {
namespace {

namespace torch_rpc = torch::distributed::rpc;
using JitFuture = c10::ivalue::Future;

constexpr std::uint64_t kWake = std::numeric_limits<std::uint64_t>::max();
// About what an answer takes that waits for no work.
constexpr std::chrono::microseconds kLooksFor{100};
constexpr auto kNever = Deadline::Clock::time_point::max();

LocalTransport::Answer new_answer() {
  return c10::make_intrusive<JitFuture>(at::AnyClassType::get());
}

// Whoever waits for an answer may have left an action with it.
template <class Complete>
void guarded(Complete&& complete) noexcept {
  try {
    complete();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, concat("rpc: a reply callback threw: ", error_text(error)));
  } catch (...) {
    log(LogLevel::kWarning, "rpc: a reply callback threw");
  }
}

void fail(JitFuture& answer, const std::string& text) noexcept {
  guarded([&] { answer.setErrorIfNeeded(std::make_exception_ptr(CommError(text))); });
}

std::string text_in(const MessageData& parcel) {
  return {parcel.bytes.begin(), parcel.bytes.end()};
}

Frame failure(const std::string& why, std::int64_t id) {
  return {.kind = Frame::Kind::kFailure,
          .id = id,
          .parcel = {.bytes = {why.begin(), why.end()}, .tensors = {}}};
}

// Of an answer that has been made.
Frame frame_of(const JitFuture& made, std::int64_t id) {
  if (made.hasError()) return failure(made.tryRetrieveErrorMessage(), id);
  const auto message = made.constValue().toCustomClass<torch_rpc::Message>();
  if (const auto problem = problem_of(message->tensors())) return failure(*problem, id);
  return {.kind = Frame::Kind::kAnswer,
          .id = id,
          .parcel = {std::move(message->payload()), std::move(message->tensors())}};
}

}  // namespace

LocalTransport::LocalTransport(std::unordered_map<int, UniqueFd> sockets, std::size_t most_bytes,
                               Receiver& receiver)
    : most_bytes_(most_bytes),
      receiver_(receiver),
      poll_set_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWake}};
  if (!poll_set_.valid() || !wake_.valid() ||
      ::epoll_ctl(poll_set_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) {
    throw SystemError("rpc: making an epoll set", errno);
  }
  for (auto& [rank, socket] : sockets) {
    links_.emplace(
        rank, std::make_shared<LocalLink>(rank, std::move(socket), poll_set_.get(), most_bytes));
  }
}

LocalTransport::~LocalTransport() {
  stop();
}

void LocalTransport::start() {
  has_thread_ = true;
  thread_.start([this](const std::stop_token& stop) {
    if (stop.stop_possible()) {
      run(stop);
    } else {
      has_thread_ = false;
    }
  });
  if (!has_thread_) throw SystemError("rpc::init: starting a thread", EAGAIN);
}

void LocalTransport::stop() noexcept {
  if (stopped_.exchange(true)) return;
  thread_.request_stop();
  wake();
  thread_.finish();
  for (const auto& [rank, link] : links_) lose(*link);
  { const std::unique_lock lock(looking_); }  // Nobody looks from here on.
  for (Arrival& arrival : take_those_left()) {
    if (arrival.answer) handle(std::move(arrival));
  }
}

LocalTransport::Answer LocalTransport::send(int rank, torch_rpc::Message& request,
                                            std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  const std::int64_t id = next_id_++;
  LocalLink& link = *links_.at(rank);
  OutgoingFrame frame = to_outgoing(
      {.id = id, .parcel = {std::move(request.payload()), std::move(request.tensors())}},
      &link.blocks());
  const Answer answer = new_answer();
  bool must_wake = false;
  {
    const MutexLock lock(mutex_);
    pending_.emplace(id, Pending{.rank = rank, .deadline = deadline, .answer = answer});
    must_wake = deadline.instant() < wakes_at_;
    if (must_wake) wakes_at_ = deadline.instant();
  }
  if (must_wake) wake();
  if (!link.send(std::move(frame))) lose(link);  // Who closed it may not have seen this call.
  return answer;
}

void LocalTransport::notify_loss(int rank) {
  for (const auto& [other, link] : links_) {
    if (other != rank) link->send(to_outgoing({.kind = Frame::Kind::kLoss, .id = rank}));
  }
}

void LocalTransport::run(const std::stop_token& stop) {
  std::array<epoll_event, 16> events;
  while (!stop.stop_requested()) {
    const int count =
        ::epoll_wait(poll_set_.get(), events.data(), events.size(), milliseconds_to_wait());
    for (int i = 0; i < count; ++i) {
      const auto& [what, data] = events[static_cast<std::size_t>(i)];
      if (data.u64 == kWake) {
        std::uint64_t ignored = 0;
        while (::read(wake_.get(), &ignored, sizeof ignored) > 0) {
        }
        continue;
      }
      LocalLink& link = *links_.at(static_cast<int>(data.u64));
      if ((what & EPOLLOUT) != 0) link.go_on();
      if ((what & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) receive(link);
    }
    for (Arrival& arrival : take_those_left()) handle(std::move(arrival));
    end_overdue();
  }
}

int LocalTransport::milliseconds_to_wait() {
  const MutexLock lock(mutex_);
  return wakes_at_ == kNever ? -1 : poll_timeout(Deadline(wakes_at_));
}

void LocalTransport::receive(LocalLink& link) {
  std::vector<Arrival> arrivals;
  const auto received = link.receive(LocalLink::Turn::kWaitFor, [&](Frame frame) {
    arrivals.push_back(arrival_of(link.rank(), std::move(frame)));
  });
  for (Arrival& arrival : arrivals) handle(std::move(arrival));
  if (received == LocalLink::Received::kEnd) lose(link);
}

// A thread that waits reads for itself: its answer comes without a switch of threads. It runs
// nothing that others wait for: that might take locks which this thread has.
void LocalTransport::poll_for(const c10::ivalue::Future& answer, int rank) {
  std::optional<Arrival> own;
  {
    const std::shared_lock lock(looking_, std::try_to_lock);
    const auto found = links_.find(rank);
    if (!lock || stopped_ || found == links_.end()) return;
    std::vector<Arrival> others;
    const auto until = Deadline::Clock::now() + kLooksFor;
    while (!own && !answer.completed() && Deadline::Clock::now() < until) {
      const auto received = found->second->receive(LocalLink::Turn::kLeave, [&](Frame frame) {
        Arrival arrival = arrival_of(rank, std::move(frame));
        if (arrival.answer && arrival.answer.get() == &answer) {
          own = std::move(arrival);
        } else {
          others.push_back(std::move(arrival));
        }
      });
      if (!others.empty()) {
        {
          const MutexLock guard(mutex_);
          std::ranges::move(others, std::back_inserter(left_));
        }
        others.clear();
        wake();
      }
      if (received == LocalLink::Received::kEnd) break;  // The transport's thread sees to it.
      if (received == LocalLink::Received::kNothing) std::this_thread::yield();
    }
  }
  if (own) handle(std::move(*own));
}

// As long as nobody reads what follows: were it the end, it would end this answer's call, too.
LocalTransport::Arrival LocalTransport::arrival_of(int rank, Frame frame) {
  Arrival arrival{.rank = rank, .frame = std::move(frame), .answer = {}};
  if (arrival.frame.kind == Frame::Kind::kRequest) return arrival;
  if (arrival.frame.kind == Frame::Kind::kLoss) {
    receiver_.note_told_of_loss(arrival.frame.id);
    return arrival;
  }
  const MutexLock lock(mutex_);
  const auto found = pending_.find(arrival.frame.id);
  if (found != pending_.end() && found->second.rank == rank) {
    arrival.answer = std::move(found->second.answer);
    pending_.erase(found);
  }
  return arrival;
}

std::vector<LocalTransport::Arrival> LocalTransport::take_those_left() {
  const MutexLock lock(mutex_);
  return std::exchange(left_, {});
}

void LocalTransport::handle(Arrival arrival) noexcept {
  guarded([&] {
    if (arrival.frame.kind == Frame::Kind::kRequest) {
      serve_and_answer(*links_.at(arrival.rank), std::move(arrival.frame));
    } else if (arrival.answer) {
      complete(std::move(arrival));
    }
  });
}

void LocalTransport::serve_and_answer(LocalLink& link, Frame frame) {
  const std::int64_t id = frame.id;
  try {
    serve(std::move(frame))->addCallback([link = links_.at(link.rank()), id](JitFuture& ready) {
      link->send(to_outgoing(frame_of(ready, id), &link->blocks()));
    });
  } catch (const std::exception& error) {  // Out of memory, as it is.
    link.send(to_outgoing(failure(error_text(error), id)));
  }
}

LocalTransport::Answer LocalTransport::serve(Frame frame) {
  if (frame.discarded_bytes > 0) return receiver_.refuse_large(frame.discarded_bytes, frame.id);
  auto request = c10::make_intrusive<torch_rpc::Message>(
      std::move(frame.parcel.bytes), std::move(frame.parcel.tensors),
      torch_rpc::MessageType::PYTHON_CALL, frame.id);
  return receiver_.serve(*request, {});
}

void LocalTransport::complete(Arrival arrival) {
  Frame& frame = arrival.frame;
  if (frame.kind == Frame::Kind::kFailure) {
    fail(*arrival.answer, reported_text(text_in(frame.parcel)));
  } else if (frame.discarded_bytes > 0) {
    fail(*arrival.answer,
         concat("the answer was refused: ",
                too_large(frame.discarded_bytes, static_cast<std::int64_t>(most_bytes_))));
  } else {
    auto message = c10::make_intrusive<torch_rpc::Message>(
        std::move(frame.parcel.bytes), std::move(frame.parcel.tensors),
        torch_rpc::MessageType::PYTHON_RET, frame.id);
    auto storages = message->getStorages();
    arrival.answer->markCompleted(std::move(message), std::move(storages));
  }
}

void LocalTransport::lose(LocalLink& link) {
  link.close();
  receiver_.note_lost(link.rank());
  std::vector<Answer> answers;
  {
    const MutexLock lock(mutex_);
    std::erase_if(pending_, [&](const auto& entry) {
      if (entry.second.rank != link.rank()) return false;
      answers.push_back(entry.second.answer);
      return true;
    });
  }
  for (const Answer& answer : answers) fail(*answer, kConnectionEnded);
}

void LocalTransport::end_overdue() {
  std::vector<Answer> answers;
  std::vector<std::pair<int, std::int64_t>> forgotten;
  {
    const MutexLock lock(mutex_);
    const auto now = Deadline::Clock::now();
    if (now < wakes_at_) return;
    wakes_at_ = kNever;
    std::erase_if(pending_, [&](const auto& entry) LOCKSTEP_REQUIRES(mutex_) {
      const Pending& pending = entry.second;
      if (pending.deadline.instant() > now) {
        wakes_at_ = std::min(wakes_at_, pending.deadline.instant());
        return false;
      }
      answers.push_back(pending.answer);
      forgotten.emplace_back(pending.rank, entry.first);
      return true;
    });
  }
  for (const auto& [rank, id] : forgotten) {
    if (links_.at(rank)->forget(id)) receiver_.note_never_sent();
  }
  for (const Answer& answer : answers) fail(*answer, kTimeoutMark);
}

void LocalTransport::wake() noexcept {
  const std::uint64_t one = 1;
  while (::write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

}  // namespace lockstep::rpc::inline internal
