#include "lockstep/comm/backends/hierarchical/failure_note.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/comm/internal/store_wait.h"

namespace lockstep::hierarchical {
namespace {

using std::chrono::milliseconds;

constexpr const char* kNoteKey = "failure";
// For a rank to find out that a peer on its machine is gone; and for a rank that waits itself to
// say so, whose timeout expires at about the same time.
constexpr milliseconds kWaitForNote{100};
// For those who know whom to name.
constexpr milliseconds kWaitForName{200};
constexpr milliseconds kLookEvery{2};
// Rank 0 of the job, which may serve the store, may be the one that is gone or stopped.
constexpr milliseconds kWaitForStore{350};

// "<failure> <how many ranks> <rank> … <text>"
std::string note_of(const UnnamedCommError& error) {
  std::string ranks;
  for (const int rank : error.ranks()) ranks += concat(rank, " ");
  return concat(static_cast<int>(error.failure()), " ", error.ranks().size(), " ", ranks,
                error.what());
}

UnnamedCommError error_of(const std::string& note) {
  std::istringstream fields(note);
  int failure = 0;
  std::size_t count = 0;
  fields >> failure >> count;
  std::vector<int> ranks(std::min(count, note.size()));
  for (int& rank : ranks) fields >> rank;
  std::string text;
  std::getline(fields.ignore(), text, '\0');
  return {static_cast<CommFailure>(failure), text, std::move(ranks)};
}

std::string waits_key(int rank) {
  return concat("waits/", rank);
}

void say_that_it_waits(c10d::Store& store, int rank) {
  store.set(waits_key(rank), std::string("yes"));
}

void wait_for_note(c10d::Store& store, Deadline until) {
  while (!until.passed() && !store.check({kNoteKey})) std::this_thread::sleep_for(kLookEvery);
}

UnnamedCommError note_of_first(c10d::Store& store, const UnnamedCommError& own) {
  const std::string first = store.compareSet(kNoteKey, std::string(), note_of(own));
  return first.empty() ? own : error_of(first);
}

UnnamedCommError note_of_timeout(c10d::Store& store, const UnnamedCommError& own, int rank) {
  const auto start = Deadline::Clock::now();
  say_that_it_waits(store, rank);
  std::vector<int> silent = own.ranks();
  if (!silent.empty()) wait_for_note(store, Deadline(start + kWaitForNote));
  std::erase_if(silent, [&](int peer) { return peer == rank || store.check({waits_key(peer)}); });
  if (!silent.empty()) return note_of_first(store, {own.failure(), own.what(), silent});
  wait_for_note(store, Deadline(start + kWaitForName));
  if (own.ranks().empty()) return note_of_first(store, own);
  return note_of_first(store,
                       {own.failure(), "a rank is stuck, stopped or did not make this call"});
}

}  // namespace

std::optional<UnnamedCommError> FailureNote::agree(const UnnamedCommError& error,
                                                   bool saw_it_itself) {
  const QuietC10d quiet;  // Of a store that is gone.
  // A thread of its own, as nothing else bounds how long a store takes to answer.
  std::packaged_task<UnnamedCommError()> ask([store = store_, error, saw_it_itself, rank = rank_] {
    if (error.failure() == CommFailure::kTimeout) return note_of_timeout(*store, error, rank);
    if (!saw_it_itself) wait_for_note(*store, Deadline::after(kWaitForNote));
    return note_of_first(*store, error);
  });
  auto answer = ask.get_future();
  std::thread(std::move(ask)).detach();
  try {
    if (answer.wait_for(kWaitForStore) != std::future_status::ready) return std::nullopt;
    return answer.get();
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void FailureNote::say_that_it_waits() const {
  std::thread([store = store_, rank = rank_] {
    try {
      hierarchical::say_that_it_waits(*store, rank);
    } catch (const std::exception&) {
    }
  }).detach();
}

}  // namespace lockstep::hierarchical
