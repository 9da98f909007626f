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
// For a rank to find out that a peer on its machine is gone.
constexpr milliseconds kWaitForNote{100};
constexpr milliseconds kLookEvery{2};
// Rank 0 of the job, which may serve the store, may be the one that is gone or stopped.
constexpr milliseconds kWaitForStore{250};

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

std::string note_of_first(c10d::Store& store, const std::string& own, bool saw_it_itself) {
  const Deadline deadline = Deadline::after(saw_it_itself ? milliseconds(0) : kWaitForNote);
  while (!deadline.passed() && !store.check({kNoteKey})) std::this_thread::sleep_for(kLookEvery);
  return store.compareSet(kNoteKey, std::string(), own);
}

}  // namespace

std::optional<UnnamedCommError> FailureNote::agree(const UnnamedCommError& error,
                                                   bool saw_it_itself) {
  const QuietC10d quiet;  // Of a store that is gone.
  // A thread of its own, as nothing else bounds how long a store takes to answer.
  std::packaged_task<std::string()> ask([store = store_, own = note_of(error), saw_it_itself] {
    return note_of_first(*store, own, saw_it_itself);
  });
  auto answer = ask.get_future();
  std::thread(std::move(ask)).detach();
  try {
    if (answer.wait_for(kWaitForStore) != std::future_status::ready) return std::nullopt;
    const std::string note = answer.get();
    return note.empty() ? error : error_of(note);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace lockstep::hierarchical
