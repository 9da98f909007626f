// A worker that keeps its state, without a training: kept_worker FOLDER ACTION..., one action per
// generation. Each is `wait` (for the end of the generation), `leave:RANK` or `kill:RANK` (what
// this rank does to itself; the others wait), or `end`.
#include <chrono>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <variant>

#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/job/internal/worker_link.h"
#include "lockstep/job/internal/worker_message.h"
#include "lockstep/program/run_main.h"

namespace lockstep::kept_worker {
namespace {

constexpr std::chrono::minutes kPatience{1};

class Worker {
 public:
  int run(const std::string& folder, char** actions) {
    send(KeepsState{.reads_within = std::chrono::seconds(1)});
    std::ofstream(concat(folder, "/announced.", rank()));
    for (;;) {
      const std::string action = actions[generation_ - 1];
      if (action == "end") {
        send(TrainingDone{});
        return 0;
      }
      if (action == concat("kill:", rank())) ::kill(::getpid(), SIGKILL);
      if (action != concat("leave:", rank())) wait_for<LeaveGroup>();
      send(LeftGroup{.generation = generation_,
                     .text = "it was told to",
                     .cause = LeftGroup::Cause::kOtherWorker,
                     .step = static_cast<std::int64_t>(generation_)});
      const auto place = wait_for<Place>();
      env::replace(place.environment);
      generation_ = place.generation;
      send(TookRank{.generation = generation_});
    }
  }

 private:
  static int rank() { return env::integer(env::kRank).value(); }

  void send(const WorkerMessage& message) const { send_message(link_.get(), message); }

  template <class Message>
  Message wait_for() const {
    for (;;) {
      auto received = receive_from_launcher(link_.get(), Deadline::after(kPatience));
      if (!received) throw Error("the launcher sent nothing for a minute");
      if (auto* const message = std::get_if<Message>(&received->message)) {
        return std::move(*message);
      }
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
