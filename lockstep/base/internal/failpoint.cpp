#include "lockstep/base/internal/failpoint.h"

#if defined(LOCKSTEP_FAILPOINTS)

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <list>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/base/internal/text.h"

namespace lockstep::inline internal {
namespace {

enum class Action { kKill, kStop, kError, kShort };

// What is to happen at one of them.
struct Armed {
  std::size_t index = 0;
  std::int64_t pass = 1;
  Action action = Action::kKill;
  std::optional<int> rank;
  std::atomic<std::int64_t> passed = 0;
};

using State = std::list<Armed>;

[[noreturn]] void refuse(const std::string& item, const std::string& reason) {
  std::string names;
  for (const FailpointInfo& point : kFailpoints) {
    names += concat(names.empty() ? "" : ", ", point.name);
  }
  throw UsageError(concat("environment variable ", env::kFailpoint.name, ": '", item, "' ", reason,
                          " (", env::kFailpoint.help, "); failpoints: ", names));
}

std::vector<std::string> split(const std::string& item) {
  std::vector<std::string> parts(1);
  for (const char letter : item) {
    if (letter == ':') {
      parts.emplace_back();
    } else {
      parts.back() += letter;
    }
  }
  return parts;
}

std::optional<Action> action_of(const std::string& name) {
  constexpr std::array kNames = {"kill", "stop", "eio", "short"};
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Action>(found - kNames.begin());
}

bool can_happen(Action action, FailpointKind kind) {
  if (action == Action::kError) return kind != FailpointKind::kPlace;
  return action != Action::kShort || kind == FailpointKind::kWrite;
}

// Whether it is meant for this process, which is of the generation that it was started in.
bool is_for(const std::string& generation, const std::string& item) {
  if (generation == "*") return true;
  const auto wanted = parse_number<int>(generation);
  if (!wanted || *wanted < 0) refuse(item, "needs a generation after the rank");
  return *wanted == env::integer(env::kRestartCount).value_or(0);
}

void add(State& state, const std::string& item) {
  const std::vector<std::string> parts = split(item);
  if (parts.size() < 3 || parts.size() > 5)
    refuse(item, "is not name:n:action[:rank[:generation]]");
  const auto point = std::ranges::find(kFailpoints, parts[0], &FailpointInfo::name);
  if (point == kFailpoints.end()) refuse(item, "names no failpoint");
  const auto pass = parse_number<std::int64_t>(parts[1]);
  if (!pass || *pass < 1) refuse(item, "needs a count of at least 1 after the name");
  const auto action = action_of(parts[2]);
  if (!action) refuse(item, "needs kill, stop, eio or short as its action");
  if (!can_happen(*action, point->kind))
    refuse(item, "has an action that this failpoint does not support");
  std::optional<int> rank;
  if (parts.size() > 3 && parts[3] != "*") {
    rank = parse_number<int>(parts[3]);
    if (!rank || *rank < 0) refuse(item, "needs a rank after the action");
  }
  if (!is_for(parts.size() > 4 ? parts[4] : "0", item)) return;
  Armed& armed = state.emplace_back();
  armed.index = static_cast<std::size_t>(point - kFailpoints.begin());
  armed.pass = *pass;
  armed.action = *action;
  armed.rank = rank;
}

void arm(State& state, std::string_view text) {
  State wanted;
  for (const std::string& item : comma_list(std::string(text))) add(wanted, item);
  state.swap(wanted);
}

State& state() {
  static State instance = [] {
    State result;
    if (const auto text = env::text(env::kFailpoint)) arm(result, *text);
    return result;
  }();
  return instance;
}

std::array<std::atomic<std::int64_t>, kFailpoints.size()> passes;

// What is to happen now that the point is passed, once more.
std::optional<Action> pass(Failpoint point) {
  passes[point.index()].fetch_add(1);
  std::optional<Action> result;
  for (Armed& armed : state()) {
    if (armed.index != point.index()) continue;
    // Of a place that the process has now: it may have had another.
    if (armed.rank && env::integer(env::kRank) != armed.rank) continue;
    if (armed.passed.fetch_add(1) + 1 != armed.pass) continue;
    const char* const verbs[] = {"killed", "stopped", "a call fails with EIO", "a write is short"};
    log(LogLevel::kWarning,
        concat("failpoint ", kFailpoints[point.index()].name, ", passed ", armed.pass,
               armed.pass == 1 ? " time: " : " times: ", verbs[static_cast<int>(armed.action)]));
    if (armed.action == Action::kKill) {
      ::raise(SIGKILL);
    } else if (armed.action == Action::kStop) {
      ::raise(SIGSTOP);
    } else {
      result = armed.action;
    }
  }
  return result;
}

}  // namespace

void arm_failpoints(std::string_view text) {
  arm(state(), text);
}

void read_failpoints() {
  state();
}

std::vector<std::int64_t> failpoint_passes() {
  return {passes.begin(), passes.end()};
}

void failpoint(Failpoint point) {
  pass(point);
}

bool failpoint_fails(Failpoint point) {
  if (!pass(point)) return false;
  errno = EIO;
  return true;
}

std::optional<std::size_t> failpoint_at_write(Failpoint point, std::size_t bytes) {
  const auto action = pass(point);
  if (!action) return bytes;
  if (*action == Action::kShort) return (bytes + 1) / 2;
  errno = EIO;
  return std::nullopt;
}

}  // namespace lockstep::inline internal

#endif
