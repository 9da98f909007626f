#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline internal {

/// A command of `lockstep` to run on a remote machine, sent as the first line of standard input, so
/// that neither a shell nor a process list shows it.
struct HostedRequest {
  /// Words after "lockstep".
  std::vector<std::string> arguments{};
  /// Working directory; it must exist.
  std::string directory{};
  /// NAME=value, added to the environment there.
  std::vector<std::string> environment{};
  /// Marks the lines that report on the command and are not its output.
  std::string marker{};
  /// Timeout for the next line; then the command is ended.
  std::chrono::milliseconds silence = std::chrono::seconds(60);
  /// Time from SIGTERM to SIGKILL.
  std::chrono::milliseconds patience{0};
  bool operator==(const HostedRequest&) const = default;
};

/// One line of JSON, without a newline.
std::string encode(const HostedRequest& request);
/// Decodes a request; nothing for other texts.
std::optional<HostedRequest> decode_hosted_request(std::string_view text);

/// Heartbeat line. Several are sent within HostedRequest::silence; if none arrives in that time,
/// the sender is gone or unreachable.
inline constexpr const char* kHeartbeat = "beat";
inline constexpr std::chrono::milliseconds kLongestSilence{60'000};
/// Interval between heartbeats.
std::chrono::milliseconds heartbeat_interval(std::chrono::milliseconds silence);
/// A line that sends a signal to the command.
std::string signal_line(int signal);
std::optional<int> signal_in(std::string_view line);

/// The remote machine's line that the command started, written to standard error.
std::string begun_mark(const std::string& marker);
/// The remote machine's line that the command ended, written to standard error.
std::string ended_mark(const std::string& marker, int status);

/// A line from the remote machine, parsed.
struct MarkedLine {
  /// Output of the command, without the mark.
  std::string text{};
  bool begun = false;
  std::optional<int> ended{};
};
MarkedLine read_marks(const std::string& line, const std::string& marker);

}  // namespace lockstep::inline internal
