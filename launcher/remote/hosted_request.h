#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline internal {

/// What `lockstep` is asked to do on another machine: the first line that it reads there. So
/// neither a shell nor a list of processes sees any of it.
struct HostedRequest {
  /// Of the command line, after "lockstep".
  std::vector<std::string> arguments{};
  /// Where it runs; it has to be there.
  std::string directory{};
  /// NAME=value, added to the environment there.
  std::vector<std::string> environment{};
  /// By which the other side knows the lines that tell of the command and are not its output.
  std::string marker{};
  /// How long it goes on without a line that follows.
  std::chrono::milliseconds silence = std::chrono::seconds(60);
  /// How long the command may take to end once it is told to.
  std::chrono::milliseconds patience{0};
  bool operator==(const HostedRequest&) const = default;
};

/// One line of JSON, without the line's end.
std::string encode(const HostedRequest& request);
/// Nothing for anything else.
std::optional<HostedRequest> decode_hosted_request(std::string_view text);

/// The lines that follow. Several come within HostedRequest::silence: when none has, who sends them
/// is gone or cannot be reached.
inline constexpr const char* kBeat = "beat";
inline constexpr std::chrono::milliseconds kLongestSilence{60'000};
std::chrono::milliseconds beat_interval(std::chrono::milliseconds silence);
/// Sends a signal to the command.
std::string signal_line(int signal);
std::optional<int> signal_in(std::string_view line);

/// What the other machine says of the command, among its errors: it was begun, or has ended.
std::string begun_mark(const std::string& marker);
std::string ended_mark(const std::string& marker, int status);

/// One line of what comes from there, taken apart.
struct MarkedLine {
  /// What is the command's; the mark is left out.
  std::string text{};
  bool begun = false;
  std::optional<int> ended{};
};
MarkedLine read_marks(const std::string& line, const std::string& marker);

}  // namespace lockstep::inline internal
