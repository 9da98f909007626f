#include "diagnose/verdict/crash_report.h"

#include <algorithm>
#include <array>
#include <ios>
#include <string_view>

#include "diagnose/capture/crash_stack.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

std::string last_part(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

// "train(+0x1234)", as addr2line takes it.
std::string place_in_module(const StackFrame& frame) {
  if (frame.module.empty()) return concat("0x", std::hex, frame.address);
  return concat(last_part(frame.module), "(+0x", std::hex, frame.offset, ")");
}

bool is_named(const StackFrame& frame) {
  return !frame.lines.empty() && !frame.lines.front().function.empty();
}

// What runs between a fault and its handler where the C and C++ libraries are part of the program.
bool is_runtime_function(std::string_view function) {
  constexpr std::array<std::string_view, 9> kNames = {
      "abort",          "raise",  "gsignal",        "pthread_kill",
      "__pthread_kill", "__cxa_", "std::terminate", "std::rethrow_exception",
      "__assert_fail"};
  return std::any_of(kNames.begin(), kNames.end(),
                     [&](std::string_view name) { return function.starts_with(name); });
}

bool is_runtime(const StackFrame& frame) {
  return is_runtime_library(frame.module) ||
         (is_named(frame) && is_runtime_function(frame.lines.back().function));
}

std::string describe(const StackFrame& frame, const SourceLine& line) {
  if (line.function.empty()) return place_in_module(frame);
  if (line.file.empty()) return concat(line.function, " in ", last_part(frame.module));
  return concat(line.function, " at ", line.file, ":", line.line);
}

// "frame", "frame (3 times)"
void add_line(std::vector<std::string>& lines, const std::string& line, int times) {
  if (times > 0) lines.push_back(times == 1 ? line : concat(line, " (", times, " times)"));
}

// How the standard library gets from one function of the program to another.
bool is_plumbing(const SourceLine& line) {
  // A function object's call may be all that is left of the program's own function.
  const bool is_own = line.function.find("{lambda") != std::string::npos;
  if (line.file.empty()) return line.function.starts_with("std::") && !is_own;
  // .../include/c++/12/bits/invoke.h, .../include/x86_64-linux-gnu/c++/12/bits/c++config.h
  const auto include = line.file.find("/include/");
  return include != std::string::npos && line.file.find("/c++/", include) != std::string::npos;
}

// Without what a fault passes through on its way to abort(), and what leads to main.
std::vector<StackFrame> of_interest(const std::vector<StackFrame>& frames) {
  auto first = std::find_if_not(frames.begin(), frames.end(), is_runtime);
  if (first == frames.end()) return frames;
  // What is in the C library by a call of the program's tells something: strlen, free.
  if (first != frames.begin() && is_named(*(first - 1)) &&
      !is_runtime_function((first - 1)->lines.back().function)) {
    --first;
  }
  auto last = std::find_if(first, frames.end(), [](const StackFrame& frame) {
    return is_named(frame) && frame.lines.back().function == "main";
  });
  if (last != frames.end()) return {first, last + 1};
  while (last - first > 1 && is_runtime(*(last - 1))) --last;
  return {first, last};
}

}  // namespace

std::string own_place(const std::vector<StackFrame>& frames) {
  for (const StackFrame& frame : frames) {
    if (is_runtime(frame) || frame.module.empty()) continue;
    if (!is_named(frame)) return place_in_module(frame);
    const auto own = std::find_if_not(frame.lines.begin(), frame.lines.end(), is_plumbing);
    if (own == frame.lines.end()) continue;
    const std::string place =
        own->file.empty() ? "" : concat(" ", last_part(own->file), ":", own->line);
    return concat(own->function, place);
  }
  return "";
}

std::string crash_message(const CrashReport& crash) {
  const std::string place = own_place(crash.frames);
  return place.empty() ? crash.cause : concat(crash.cause, " in ", place);
}

std::vector<std::string> stack_lines(const std::vector<StackFrame>& frames) {
  std::vector<std::string> lines;
  std::string repeated;
  int times = 0;
  for (const StackFrame& frame : of_interest(frames)) {
    const std::vector<SourceLine> unknown(1);
    for (const SourceLine& line : frame.lines.empty() ? unknown : frame.lines) {
      if (is_plumbing(line) && times > 0) continue;
      std::string text = describe(frame, line);
      if (text != repeated) {
        add_line(lines, repeated, times);
        repeated = std::move(text);
        times = 0;
      }
      ++times;
    }
  }
  add_line(lines, repeated, times);
  return lines;
}

std::vector<std::string> shortened(std::vector<std::string> lines, std::size_t most) {
  if (lines.size() <= most) return lines;
  const std::size_t more = lines.size() - most;
  lines.resize(most);
  lines.push_back(concat("... and ", more, " more"));
  return lines;
}

std::string last_collectives(const std::vector<StartedCollective>& collectives) {
  constexpr std::size_t kMostShown = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(collectives.size(), kMostShown); ++i) {
    const StartedCollective& collective = collectives[i];
    if (i == 0) {
      text = concat(collective.ended ? "after " : "in ", collective.call);
    } else {
      text += concat(i == 1 ? "; before it " : ", ", collective.call,
                     collective.ended ? "" : " (still pending, wait() not called)");
    }
  }
  return text;
}

}  // namespace lockstep::inline internal
