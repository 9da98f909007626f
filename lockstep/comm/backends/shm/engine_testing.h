#pragma once

#include <exception>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/backends/shm/engine.h"

/// What the tests of the engine share: ranks that are threads of one process.
namespace lockstep::shm::testing_engine {

/// The memory of a group that has `first_round` rounds behind it.
inline std::shared_ptr<Segment> make_segment(int ranks, std::uint32_t first_round = 0) {
  constexpr std::uint64_t kHeapBytes = 2 * 1024 * 1024;
  const Layout layout(ranks, kHeapBytes);
  auto segment =
      std::make_shared<Segment>(make_memory_file("lockstep test", layout.segment_bytes()), layout);
  for (int rank = 0; rank < ranks; ++rank) {
    auto* const control = reinterpret_cast<Control*>(segment->at(layout.control(rank)));
    control->reduced.store(first_round);
    control->released.store(first_round);
  }
  return segment;
}

inline Deadline soon() {
  return Deadline::after(std::chrono::seconds(30));
}

/// Runs body(engine) on a thread for each rank. Returns what each ended with: "TimeoutError: …",
/// or nothing. A rank leaves the group when its body ends.
inline std::vector<std::string> on_ranks(int ranks, const std::function<void(Engine&)>& body,
                                         std::uint32_t first_round = 0) {
  const auto segment = make_segment(ranks, first_round);
  std::vector<std::string> outcomes(static_cast<std::size_t>(ranks));
  std::latch all_present(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Engine engine(segment, rank, "test", {});
      all_present.arrive_and_wait();
      try {
        body(engine);
      } catch (const Error& error) {
        outcomes[static_cast<std::size_t>(rank)] = concat(error.name(), ": ", error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

inline std::shared_ptr<Task> start(Engine& engine, const char* name,
                                   std::unique_ptr<Operation> operation,
                                   std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  auto task = std::make_shared<Task>(name, timeout);
  task->operation = std::move(operation);
  engine.start(task);
  return task;
}

inline std::shared_ptr<Task> start_message(
    Engine& engine, const char* name, const Message& message,
    std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  auto task = std::make_shared<Task>(name, timeout);
  task->message = message;
  engine.start(task);
  return task;
}

}  // namespace lockstep::shm::testing_engine
