#include "lockstep/recovery/internal/launcher_link.h"

#include <atomic>
#include <utility>
#include <variant>

#include <poll.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/job/internal/worker_link.h"
#include "lockstep/os/memory/memory_file.h"

namespace lockstep::inline internal {

namespace {

std::atomic<bool> is_taken = false;

}  // namespace

bool LauncherLink::is_offered() {
  const auto fd = env::integer(env::kLauncherFd);
  return fd && !is_taken && is_worker_link(*fd);
}

LauncherLink::LauncherLink() {
  const auto fd = env::integer(env::kLauncherFd);
  if (!fd) return;
  if (!is_taken && !is_worker_link(*fd)) return;
  if (is_taken.exchange(true)) {
    throw UsageError(
        "this process already had an Accelerator, a ResilientTraining or a "
        "parameter_server::Training with recovery; use one for all steps, because a replacement "
        "process starts with the first step");
  }
  link_ = take_inherited(*fd);
  is_standby_ = env::boolean(env::kStandby).value_or(false);
  generation_ = static_cast<std::uint64_t>(env::integer(env::kRestartCount).value_or(0)) + 1;
  const auto memory = env::integer(env::kStateMemoryFd);
  if (memory && memory_file_bytes(*memory)) memory_ = take_inherited(*memory);
  // Where it serves the store now.
  if (const auto store = env::integer(env::kStoreListenFd)) store_ = UniqueFd(*store);
}

void LauncherLink::say_keeps_state(std::chrono::milliseconds reads_within) {
  send_message(link_.get(), KeepsState{.reads_within = reads_within});
}

void LauncherLink::say_left_group(const Error& why, std::int64_t step) {
  const std::string text = why.what();
  LeftGroup message{
      .generation = generation_, .text = text.substr(0, text.find('\n')), .step = step};
  if (dynamic_cast<const TimeoutError*>(&why) != nullptr) {
    message.cause = LeftGroup::Cause::kLateRank;
  } else if (dynamic_cast<const PeerLost*>(&why) != nullptr ||
             dynamic_cast<const PeerFailed*>(&why) != nullptr) {
    message.cause = LeftGroup::Cause::kOtherWorker;
  }
  store_.reset();
  send_message(link_.get(), message);
}

void LauncherLink::say_done(bool is_complete) {
  send_message(link_.get(), TrainingDone{.is_complete = is_complete});
}

void LauncherLink::say_gives_up() {
  send_message(link_.get(), CannotRecover{});
}

void LauncherLink::leave_memory(const UniqueFd& memory) {
  send_message(link_.get(), StateFile{}, memory.get());
}

std::int64_t LauncherLink::steps_made() const {
  const auto steps = connected() ? env::text(kStepsMade) : std::nullopt;
  return steps ? parse_number<std::int64_t>(*steps).value_or(-1) : -1;
}

bool LauncherLink::has_news(std::chrono::milliseconds patience) const {
  return is_over_ || has_message(patience);
}

bool LauncherLink::has_message(std::chrono::milliseconds patience) const {
  pollfd entry{.fd = link_.get(), .events = POLLIN, .revents = 0};
  return link_.valid() && ::poll(&entry, 1, static_cast<int>(patience.count())) > 0;
}

bool LauncherLink::is_removed() {
  while (has_message({})) receive(Deadline::after({}));
  return is_removed_;
}

void LauncherLink::receive(const Deadline& deadline) {
  auto received = receive_from_launcher(link_.get(), deadline);
  if (!received) return;
  if (auto* const next = std::get_if<Place>(&received->message)) {
    if (next->generation <= generation_) return;
    place_ = std::move(*next);
    store_of_place_ = std::move(received->file);
  } else if (const auto* const leave = std::get_if<LeaveGroup>(&received->message)) {
    const std::uint64_t own = place_ ? place_->generation : generation_;
    is_over_ = place_ && leave->generation == own;
    is_removed_ = leave->generation > own;
  } else {
    memory_ = std::move(received->file);
  }
}

void LauncherLink::take_rank(const std::function<void()>& while_waiting) {
  constexpr std::chrono::milliseconds kSlice{20};
  constexpr std::chrono::seconds kNextWord{10};
  Deadline next_word = Deadline::after(kNextWord);
  is_over_ = false;
  while (!place_ || (!is_over_ && has_message({}))) {
    while_waiting();
    receive(Deadline::after(kSlice));
    if (!is_standby_ && next_word.passed()) {
      log(LogLevel::kWarning, "still waiting to be assigned a rank in the job's next generation");
      next_word = Deadline::after(kNextWord);
    }
  }
  is_standby_ = false;
  Place place = *std::exchange(place_, std::nullopt);
  place.environment.push_back(concat(env::kStandby.name, "=0"));
  generation_ = place.generation;
  store_ = std::move(store_of_place_);
  if (store_.valid()) {
    place.environment.push_back(concat(env::kStoreListenFd.name, "=", store_.get()));
  }
  env::replace(place.environment);
  send_message(link_.get(), TookRank{.generation = generation_});
}

}  // namespace lockstep::inline internal
