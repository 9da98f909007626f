#include "diagnose/verdict/error_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/readable_file.h"

namespace lockstep::inline internal {
namespace {

using nlohmann::json;

std::string printable_first_line(std::string text) {
  constexpr std::size_t kLongestMessageBytes = 1000;
  text.resize(std::min({text.size(), text.find('\n'), kLongestMessageBytes}));
  for (char& c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7f) c = ' ';
  }
  return text;
}

// Empty, 0, null where there is none or it is something else.
json member(const json& object, const char* name) {
  return object.is_object() ? object.value(name, json()) : json();
}

std::string text_member(const json& object, const char* name) {
  const json value = member(object, name);
  return value.is_string() ? printable_first_line(value.get<std::string>()) : "";
}

std::uint64_t address_member(const json& object, const char* name) {
  const std::string text = text_member(object, name);
  std::uint64_t value = 0;
  if (text.starts_with("0x")) {
    std::from_chars(text.data() + 2, text.data() + text.size(), value, 16);
  }
  return value;
}

// The list's members, but no more of them than a crash leaves.
json short_list(const json& object, const char* name) {
  constexpr std::size_t kMost = 256;
  json list = member(object, name);
  if (!list.is_array()) return json::array();
  if (list.size() > kMost) list.erase(list.begin() + kMost, list.end());
  return list;
}

StartedCollective read_collective(const json& object) {
  StartedCollective collective{.call = text_member(object, "operation"),
                               .ended = member(object, "ended") == true};
  const json sequence = member(object, "sequence");
  if (sequence.is_number_unsigned()) collective.call += concat(" number ", sequence.dump());
  collective.call += concat(" of group '", text_member(object, "group"), "'");
  return collective;
}

std::optional<CrashReport> read_crash(const json& crash) {
  if (!crash.is_object()) return {};
  CrashReport report{.cause = text_member(crash, "cause")};
  if (member(crash, "main_thread") == false) report.thread = text_member(crash, "thread");
  for (const json& frame : short_list(crash, "frames")) {
    report.frames.push_back({.address = address_member(frame, "address"),
                             .module = text_member(frame, "module"),
                             .offset = address_member(frame, "offset")});
  }
  for (const json& collective : short_list(crash, "collectives")) {
    report.collectives.push_back(read_collective(collective));
  }
  return report;
}

json read_json(const std::filesystem::path& file) try {
  // Workers may write anything: no more is read than a long Python traceback needs.
  constexpr std::size_t kMostBytes = 1 << 20;
  const ReadableFile opened(file);
  std::string text(std::min<std::uint64_t>(opened.size_bytes(), kMostBytes), '\0');
  opened.read(0, text.data(), text.size());
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
} catch (const Error&) {
  return {};  // There is none, or it is something else than a file.
}

// The innermost call first, as in the launcher's report.
std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

}  // namespace

ErrorKind error_kind_of(std::string_view message) {
  constexpr std::array<std::string_view, 2> kTypes = {"PeerLost:", "PeerFailed:"};
  constexpr std::array<std::string_view, 2> kPhrases = {"Connection reset by peer",
                                                        "Connection closed by peer"};
  const bool follows =
      std::ranges::any_of(kTypes,
                          [&](std::string_view type) { return message.starts_with(type); }) ||
      std::ranges::any_of(kPhrases, [&](std::string_view phrase) {
        return message.find(phrase) != std::string_view::npos;
      });
  return follows ? ErrorKind::kOtherWorker : ErrorKind::kOwn;
}

ErrorReport read_error_file(const std::filesystem::path& file) {
  json message = member(read_json(file), "message");
  json code;
  std::optional<CrashReport> crash;
  if (message.is_object()) {
    code = member(message, "errorCode");
    crash = read_crash(member(member(message, "extraInfo"), "crash"));
    message = member(message, "message");
  }
  if (!message.is_string()) return {};
  ErrorReport report{.message = printable_first_line(message.get<std::string>()),
                     .crash = std::move(crash)};
  report.kind = error_kind_of(report.message);
  // Anything else is no failure's exit code.
  if (code.is_number_unsigned() && code >= 1U && code <= 255U) report.exit_code = code.get<int>();
  return report;
}

void add_names(const std::filesystem::path& file, const CrashReport& crash) {
  json document = read_json(file);
  json& message = document["message"];
  message["message"] = crash_message(crash);
  message["extraInfo"]["py_callstack"] =
      concat(crash_message(crash), "\n", joined(stack_lines(crash.frames)));
  json& frames = message["extraInfo"]["crash"]["frames"];
  for (std::size_t i = 0; i < crash.frames.size(); ++i) {
    json& lines = frames.at(i)["lines"] = json::array();
    for (const SourceLine& line : crash.frames[i].lines) {
      lines.push_back({{"function", line.function}, {"file", line.file}, {"line", line.line}});
    }
  }
  std::ofstream(file) << document.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<std::string> error_document(const std::filesystem::path& file) {
  const json document = read_json(file);
  if (!document.is_object()) return std::nullopt;
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace lockstep::inline internal
