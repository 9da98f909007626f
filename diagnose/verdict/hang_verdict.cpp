#include "diagnose/verdict/hang_verdict.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "diagnose/capture/crash_stack.h"
#include "diagnose/verdict/shared_calls.h"
#include "diagnose/verdict/worker_text.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

using Call = RecentCalls::Call;

constexpr std::size_t kMostLines = 8;    // of the stack of a thread that matters
constexpr std::size_t kMostThreads = 6;  // beside the main one

bool is(const Call& call, const AwaitedCall& awaited) {
  return call.operation.data() == awaited.operation && call.group.data() == awaited.group &&
         call.sequence == awaited.sequence;
}

const Call* find(const RankPlace& rank, const AwaitedCall& awaited) {
  const auto found =
      std::ranges::find_if(rank.calls, [&](const Call& call) { return is(call, awaited); });
  return found == rank.calls.end() ? nullptr : &*found;
}

// The first of the calls that it waits for.
const Call* first_awaited(const RankPlace& rank) {
  const auto found = std::find_if(rank.calls.rbegin(), rank.calls.rend(),
                                  [](const Call& call) { return call.waited && !call.ended; });
  return found == rank.calls.rend() ? nullptr : &*found;
}

bool is_stopped(const RankPlace& rank) {
  const auto& threads = rank.stacks.threads;
  return !threads.empty() && (threads.front().state == 'T' || threads.front().state == 't');
}

// Only some ranks belong to a group that is not the default one.
bool may_be_awaited(const RankPlace& rank, const AwaitedCall& awaited) {
  if (const Call* const call = find(rank, awaited)) return !call->ended;
  return awaited.group == "default" || std::ranges::any_of(rank.calls, [&](const Call& call) {
           return call.group.data() == awaited.group;
         });
}

std::string what_it_did(const RankPlace& rank, const std::optional<AwaitedCall>& awaited,
                        const std::string& what, bool is_late) {
  const Call* const here = awaited ? find(rank, *awaited) : nullptr;
  const Call* const open = first_awaited(rank);
  std::string text;
  const auto add = [&](const char* link, const std::string& part) {
    text += concat(text.empty() ? " " : link, part);
  };
  if (awaited && here == nullptr && (is_late || may_be_awaited(rank, *awaited))) {
    add("", concat("never entered ", what));
  } else if (here != nullptr && here->ended) {
    add("", concat("has left ", what));
  } else if (here != nullptr && here->waited) {
    add("", concat("is in ", what));
  } else if (here != nullptr) {
    add("", concat("has begun ", what, ", but does not wait for it"));
  }
  if (open != nullptr && open != here) add(", but ", concat("is in ", describe(*open)));
  if (is_stopped(rank)) add(", and ", "is stopped by a signal");
  if (here == nullptr && open == nullptr) {
    add(", and ", rank.calls.empty()
                      ? "has entered no collective"
                      : concat("is in no collective (last: ", describe(rank.calls.front()), ")"));
  }
  return text;
}

std::string name_of_state(char state) {
  switch (state) {
    case 'R':
      return "runs";
    case 'S':
      return "waits";
    case 'D':
      return "waits inside the kernel";
    case 'T':
    case 't':
      return "is stopped";
    case 'Z':
      return "has ended";
    default:
      return concat("is in state ", state);
  }
}

std::string head(const ThreadStack& thread, bool is_main) {
  return concat(is_main ? "main thread" : "thread", " ", thread.id, " '", thread.name, "' ",
                name_of_state(thread.state));
}

std::string place(const ThreadStack& thread) {
  const std::string own = own_place(thread.frames);
  if (!own.empty()) return own;
  const std::vector<std::string> lines = stack_lines(thread.frames);
  return lines.empty() ? "" : lines.front();
}

// And not of what it is built with.
bool is_of_the_program(const StackFrame& frame) {
  if (frame.lines.empty() || is_runtime_library(frame.module)) return false;
  const std::string& function = frame.lines.front().function;
  const auto is_in = [&](const char* name) { return function.find(name) != std::string::npos; };
  constexpr std::array kFiles = {"/libtorch", "/libc10", "/libgomp", "/libmkl"};
  constexpr std::array kSpaces = {"lockstep::", "torch::", "at::", "c10::", "c10d::", "std::"};
  const auto is_file = [&](const char* name) {
    return frame.module.find(name) != std::string::npos;
  };
  const auto begins = [&](const char* name) { return function.starts_with(name); };
  if (std::ranges::any_of(kFiles, is_file)) return false;
  // A function object's call may be all that is left of the program's own function.
  return !std::ranges::any_of(kSpaces, begins) || (is_in("{lambda") && !is_in("lockstep::"));
}

// "read_batch train.py:12"
std::string place(const SourceLine& line) {
  return concat(line.function, " ", line.file.substr(line.file.rfind('/') + 1), ":", line.line);
}

// And not of Python or what is installed for it.
bool is_of_the_script(const SourceLine& line) {
  const auto is_in = [&](const char* folder) {
    return line.file.find(folder) != std::string::npos;
  };
  return !line.file.starts_with("<") && !is_in("/lib/python3") && !is_in("-packages/");
}

// Of the main thread; empty: of a program without Python.
std::string python_place(const RankPlace& rank) {
  const auto main = std::ranges::find(rank.python, true, &PythonThread::took_signal);
  if (main == rank.python.end() || main->frames.empty()) return "";
  const std::string innermost = place(main->frames.front());
  const auto own = std::ranges::find_if(main->frames, is_of_the_script);
  if (own == main->frames.begin() || own == main->frames.end()) return innermost;
  return concat(innermost, ", called from ", place(*own));
}

std::vector<std::string> python_lines(const PythonThread& thread) {
  std::vector<std::string> lines;
  for (const SourceLine& line : thread.frames) {
    lines.push_back(concat(line.function, " at ", line.file, ":", line.line));
  }
  return lines;
}

const char* head(const PythonThread& thread) {
  return thread.took_signal ? "main thread in Python:" : "thread in Python:";
}

// The main one first; of the others only where they are.
void add_python_threads(std::string& text, const RankPlace& rank) {
  for (const PythonThread& thread : rank.python) {
    if (!thread.took_signal) continue;
    text += concat("lockstep:     ", head(thread), "\n");
    for (const std::string& line : shortened(python_lines(thread), kMostLines)) {
      text += concat("lockstep:       ", line, "\n");
    }
  }
  std::size_t others = 0;
  for (const PythonThread& thread : rank.python) {
    if (thread.took_signal || thread.frames.empty() || ++others > kMostThreads) continue;
    text += concat("lockstep:     ", head(thread), " ", place(thread.frames.front()), "\n");
  }
}

void add_threads(std::string& text, const RankPlace& rank) {
  const auto& threads = rank.stacks.threads;
  for (std::size_t i = 0; i < std::min(threads.size(), kMostThreads + 1); ++i) {
    if (i > 0) {
      const std::string where = place(threads[i]);
      text +=
          concat("lockstep:     ", head(threads[i], false), where.empty() ? "" : ": ", where, "\n");
      continue;
    }
    const std::vector<std::string> lines = shortened(stack_lines(threads[i].frames), kMostLines);
    text += concat("lockstep:     ", head(threads[i], true), ":\n");
    for (const std::string& line : lines) text += concat("lockstep:       ", line, "\n");
  }
  if (threads.size() > kMostThreads + 1) {
    text += concat("lockstep:     and ", threads.size() - kMostThreads - 1, " more threads\n");
  }
  if (!rank.stacks.trouble.empty()) {
    text += concat("lockstep:     its stack is unknown: ", rank.stacks.trouble, "\n");
  }
}

// By the machine's clock; what the deadline was where that is not known.
std::int64_t waited_ms(const Call& call, const AwaitedCall& awaited) {
  const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
  return call.started_ns > 0 ? (now.count() - call.started_ns) / 1'000'000 : awaited.waited.count();
}

// "; ranks 0, 1 have waited for 5000 ms"
std::string who_waits(const std::vector<RankPlace>& ranks, const AwaitedCall& awaited) {
  std::vector<int> waiting;
  std::int64_t longest_ms = 0;
  for (const RankPlace& rank : ranks) {
    const Call* const call = find(rank, awaited);
    const bool is_in_it = call != nullptr && call->waited && !call->ended;
    if (!is_in_it || is_stopped(rank)) continue;
    waiting.push_back(rank.worker.rank);
    longest_ms = std::max(longest_ms, waited_ms(*call, awaited));
  }
  if (waiting.empty()) return "";
  return concat("; ", rank_list(waiting), waiting.size() > 1 ? " have" : " has", " waited for ",
                longest_ms, " ms");
}

std::string describe(const AwaitedCall& awaited) {
  return awaited.sequence ? concat(awaited.operation, " number ", *awaited.sequence, " of group '",
                                   awaited.group, "'")
                          : concat(awaited.operation, " of group '", awaited.group, "'");
}

// As a rank that has entered it says it.
std::string name_of(const std::vector<RankPlace>& ranks, const AwaitedCall& awaited) {
  for (const RankPlace& rank : ranks) {
    if (const Call* const call = find(rank, awaited)) return describe(*call);
  }
  return describe(awaited);
}

}  // namespace

bool waits(const RankPlace& rank) {
  return (rank.worker.deadline_expired || first_awaited(rank) != nullptr) && !is_stopped(rank);
}

// One that has left the call and is stopped may not have sent all of its part.
std::vector<bool> find_late(const std::vector<RankPlace>& ranks,
                            const std::optional<AwaitedCall>& awaited) {
  std::vector<bool> late;
  for (const RankPlace& rank : ranks) {
    const bool is_awaited = !awaited || may_be_awaited(rank, *awaited);
    late.push_back(is_stopped(rank) || (is_awaited && !waits(rank)));
  }
  if (!awaited || std::ranges::find(late, true) != late.end()) return late;
  const bool some_may = std::ranges::any_of(ranks, [&](const RankPlace& rank) {
    return may_be_awaited(rank, *awaited) && find(rank, *awaited) == nullptr;
  });
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    late[i] = find(ranks[i], *awaited) == nullptr &&
              (may_be_awaited(ranks[i], *awaited) || (!some_may && waits(ranks[i])));
  }
  return late;
}

std::string main_place(const RankPlace& rank) {
  if (const std::string python = python_place(rank); !python.empty()) return python;
  if (rank.stacks.threads.empty()) return "";
  const std::vector<StackFrame>& frames = rank.stacks.threads.front().frames;
  const std::string innermost = place(rank.stacks.threads.front());
  const auto users = std::ranges::find_if(frames, is_of_the_program);
  const std::string own = users == frames.end() ? "" : own_place({*users});
  return own.empty() || own == innermost ? innermost : concat(innermost, ", called from ", own);
}

std::string hang_verdict(const std::vector<RankPlace>& ranks,
                         const std::optional<AwaitedCall>& awaited, const std::string& cause) {
  const std::string what = awaited ? name_of(ranks, *awaited) : "";
  const std::string waiting = awaited ? who_waits(ranks, *awaited) : "";
  const std::vector<bool> late = find_late(ranks, awaited);
  std::string text;
  std::string others;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const RankPlace& rank = ranks[i];
    const std::string did = what_it_did(rank, awaited, what, late[i]);
    if (!late[i]) {
      others += concat("lockstep:   rank ", rank.worker.rank, did, "\n");
      continue;
    }
    const std::string where = main_place(rank);
    text += concat("lockstep: hang: ", describe_worker(rank.worker), did, waiting, "\n");
    if (!where.empty()) text += concat("lockstep:   main thread is in ", where, "\n");
    add_python_threads(text, rank);
    add_threads(text, rank);
  }
  if (text.empty()) {
    text = concat("lockstep: hang: the late rank is on another machine",
                  awaited ? concat("; all ranks here are in ", what) : "", "\n");
  }
  if (!awaited && !cause.empty()) text += concat("lockstep:   cause: ", cause, "\n");
  return text + others;
}

std::string all_stacks(const RankPlace& rank) {
  std::string text = concat(describe_worker(rank.worker), "\n");
  for (const Call& call : rank.calls) {
    text += concat(call.ended ? "  after " : "  in ", describe(call), "\n");
  }
  for (const PythonThread& thread : rank.python) {
    text += concat(head(thread), "\n");
    for (const std::string& line : python_lines(thread)) text += concat("  ", line, "\n");
  }
  for (const ThreadStack& thread : rank.stacks.threads) {
    text += concat(head(thread, &thread == &rank.stacks.threads.front()), "\n");
    for (const std::string& line : stack_lines(thread.frames)) text += concat("  ", line, "\n");
  }
  if (!rank.stacks.trouble.empty()) text += concat(rank.stacks.trouble, "\n");
  return text;
}

}  // namespace lockstep::inline internal
