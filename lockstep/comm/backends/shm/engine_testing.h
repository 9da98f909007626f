#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/backends/shm/engine.h"

/// Helpers of the engine's tests: ranks are threads of one process.
namespace lockstep::shm::testing_engine {

/// The memory of a group that has already made `first_round` rounds.
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

/// How a rank ended.
struct Outcome {
  std::string error = {};  ///< the type's name; empty: none
  ErrorFields fields = {};
  std::string text = {};  ///< of the error; not compared

  bool operator==(const Outcome& other) const {
    return error == other.error && describe(fields) == describe(other.fields) &&
           fields.timeout == other.fields.timeout && fields.ranks == other.fields.ranks;
  }
  friend void PrintTo(const Outcome& outcome, std::ostream* stream) {
    *stream << outcome.error << " in " << describe(outcome.fields) << ", ranks";
    for (const int rank : outcome.fields.ranks) *stream << ' ' << rank;
    if (outcome.fields.timeout) *stream << ", timeout " << outcome.fields.timeout->count() << " ms";
    *stream << ": " << outcome.text;
  }
};

inline constexpr std::chrono::seconds kCallTimeout{20};

/// The outcome of a call that ends with an error that names `ranks`.
inline Outcome error_in(const char* error, const char* operation, std::uint64_t sequence,
                        int own_rank, std::vector<int> ranks,
                        std::chrono::milliseconds timeout = kCallTimeout) {
  return {.error = error,
          .fields = {.operation = operation,
                     .group = "test",
                     .own_rank = own_rank,
                     .sequence = sequence,
                     .timeout = timeout,
                     .ranks = std::move(ranks)}};
}

/// Runs body(engine) on a thread for each rank, which leaves the group when its body ends.
inline std::vector<Outcome> on_ranks(int ranks, const std::function<void(Engine&)>& body,
                                     std::uint32_t first_round = 0) {
  const auto segment = make_segment(ranks, first_round);
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  std::latch all_present(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Engine engine(segment, rank, "test", {});
      all_present.arrive_and_wait();
      Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
      try {
        body(engine);
      } catch (const OperationError& error) {
        outcome = {.error = error.name(), .fields = error.fields(), .text = error.what()};
      } catch (const Error& error) {
        outcome = {.error = error.name(), .text = error.what()};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

inline std::shared_ptr<Task> start(Engine& engine, const char* name,
                                   std::unique_ptr<Operation> operation,
                                   std::chrono::milliseconds timeout = kCallTimeout) {
  auto task = std::make_shared<Task>(name, timeout);
  task->operation = std::move(operation);
  engine.start(task);
  return task;
}

inline std::shared_ptr<Task> start_message(Engine& engine, const char* name, const Message& message,
                                           std::chrono::milliseconds timeout = kCallTimeout) {
  auto task = std::make_shared<Task>(name, timeout);
  task->message = message;
  engine.start(task);
  return task;
}

}  // namespace lockstep::shm::testing_engine
