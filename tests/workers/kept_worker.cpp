// A worker that keeps its state, without a training: kept_worker FOLDER ACTION..., one action per
// generation. Each is `wait` (for the end of the generation), `leave:RANK` or `kill:RANK` (what
// this rank does to itself; the others wait), or `end`.
#include <chrono>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/job/internal/worker_link.h"
#include "lockstep/program/run_main.h"

namespace lockstep::kept_worker {
namespace {

constexpr std::chrono::minutes kPatience{1};

class Worker {
 public:
  int run(const std::string& folder, char** actions) {
    send(LinkMessage::Kind::kKeepsState, {"1000"});
    std::ofstream(concat(folder, "/announced.", rank()));
    for (;;) {
      const std::string action = actions[generation_ - 1];
      if (action == "end") {
        send(LinkMessage::Kind::kDone, {});
        return 0;
      }
      if (action == concat("kill:", rank())) ::kill(::getpid(), SIGKILL);
      if (action != concat("leave:", rank())) wait_for(LinkMessage::Kind::kLeave);
      send(LinkMessage::Kind::kLeftGroup,
           {"it was told to", LinkMessage::kFollows, std::to_string(generation_)});
      const LinkMessage place = wait_for(LinkMessage::Kind::kPlace);
      env::replace(place.lines);
      generation_ = place.generation;
      send(LinkMessage::Kind::kTookPlace, {});
    }
  }

 private:
  static int rank() { return env::integer(env::kRank).value(); }

  void send(LinkMessage::Kind kind, std::vector<std::string> lines) const {
    send_message(link_.get(), {.kind = kind, .generation = generation_, .lines = std::move(lines)});
  }

  LinkMessage wait_for(LinkMessage::Kind kind) const {
    for (;;) {
      auto message = receive_message(link_.get(), Deadline::after(kPatience));
      if (!message) throw Error("the launcher sent nothing for a minute");
      if (message->kind == kind) return std::move(*message);
    }
  }

  const UniqueFd link_ = take_inherited(env::integer(env::kLauncherFd).value());
  std::uint64_t generation_ =
      static_cast<std::uint64_t>(env::integer(env::kRestartCount).value()) + 1;
};

}  // namespace
}  // namespace lockstep::kept_worker

int main(int, char** argv) {
  return lockstep::run_main([&] { return lockstep::kept_worker::Worker().run(argv[1], argv + 2); });
}
