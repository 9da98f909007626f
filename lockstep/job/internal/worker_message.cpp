#include "lockstep/job/internal/worker_message.h"

#include <charconv>
#include <concepts>
#include <cstring>
#include <string_view>
#include <utility>

#include "lockstep/base/internal/parse_number.h"
#include "lockstep/job/internal/worker_link.h"

namespace lockstep::inline internal {
namespace {

using std::chrono::milliseconds;

// On the wire; a number is never used again for another message.
enum class Number : char {
  kKeepsState = 1,
  kLeftGroup,
  kTrainingDone,
  kStateFile,
  kTookPlace,
  kCallsFile,
  kWaitedInVain,
  kPlace,
  kLeaveGroup,
  kGivesUp,
  kKeptStateFile,
  kPythonStacksPipe
};

constexpr const char* kLateRank = "late";
constexpr const char* kOtherWorker = "follows";
constexpr const char* kIncomplete = "incomplete";

// The number, the generation in digits, and each line after a zero byte.
std::string encoded(Number number, std::uint64_t generation,
                    const std::vector<std::string>& lines = {}) {
  std::string bytes(1, static_cast<char>(number));
  bytes += std::to_string(generation);
  for (const std::string& line : lines) bytes.append(1, '\0').append(line);
  return bytes;
}

template <std::integral Integer>
std::string digits(std::optional<Integer> number) {
  return number ? std::to_string(*number) : std::string();
}

std::string text_of(LeftGroup::Cause cause) {
  switch (cause) {
    case LeftGroup::Cause::kLateRank:
      return kLateRank;
    case LeftGroup::Cause::kOtherWorker:
      return kOtherWorker;
    case LeftGroup::Cause::kError:
      break;
  }
  return "";
}

std::string encode(const KeepsState& message) {
  return encoded(Number::kKeepsState, 0, {std::to_string(message.reads_within.count())});
}
std::string encode(const LeftGroup& message) {
  return encoded(Number::kLeftGroup, message.generation,
                 {message.text, text_of(message.cause), digits(message.step)});
}
std::string encode(const TrainingDone& message) {
  if (message.is_complete) return encoded(Number::kTrainingDone, 0);
  return encoded(Number::kTrainingDone, 0, {kIncomplete});
}
std::string encode(const StateFile&) {
  return encoded(Number::kStateFile, 0);
}
std::string encode(const TookRank& message) {
  return encoded(Number::kTookPlace, message.generation);
}
std::string encode(const CallsFile&) {
  return encoded(Number::kCallsFile, 0);
}
std::string encode(const PythonStacksPipe& message) {
  return encoded(Number::kPythonStacksPipe, 0, {std::to_string(message.signal)});
}
std::string encode(const DeadlineExpired& message) {
  return encoded(Number::kWaitedInVain, 0,
                 {message.operation, message.group, digits(message.sequence),
                  std::to_string(message.waited.count())});
}
std::string encode(const CannotRecover&) {
  return encoded(Number::kGivesUp, 0);
}
std::string encode(const Place& message) {
  return encoded(Number::kPlace, message.generation, message.environment);
}
std::string encode(const LeaveGroup& message) {
  return encoded(Number::kLeaveGroup, message.generation);
}
std::string encode(const KeptStateFile&) {
  return encoded(Number::kKeptStateFile, 0);
}

template <class Message>
bool send_encoded(int link, const Message& message, int file) noexcept try {
  return send_frame(link, std::visit([](const auto& one) { return encode(one); }, message), file);
} catch (const std::exception&) {
  return false;  // Out of memory.
}

// A message before it is known which. Lines that are missing are empty.
struct Parsed {
  Number number{};
  std::uint64_t generation = 0;
  std::vector<std::string> lines{};

  std::string line(std::size_t at) const { return at < lines.size() ? lines[at] : std::string(); }
  template <std::integral Integer>
  std::optional<Integer> number_of(std::size_t at) const {
    return parse_number<Integer>(line(at));
  }
  milliseconds time(std::size_t at) const {
    return milliseconds(number_of<std::int64_t>(at).value_or(0));
  }
};

std::optional<Parsed> parse(std::string_view bytes) {
  if (bytes.empty()) return std::nullopt;
  Parsed parsed{.number = static_cast<Number>(bytes[0])};
  const char* const end = bytes.data() + bytes.size();
  const auto [rest, error] = std::from_chars(bytes.data() + 1, end, parsed.generation);
  if (error != std::errc()) return std::nullopt;
  for (const char* at = rest; at < end;) {
    if (*at++ != '\0') return std::nullopt;
    const auto* const stop =
        static_cast<const char*>(std::memchr(at, '\0', static_cast<std::size_t>(end - at)));
    parsed.lines.emplace_back(at, stop == nullptr ? end : stop);
    at = stop == nullptr ? end : stop;
  }
  return parsed;
}

LeftGroup::Cause cause_of(std::string_view text) {
  if (text == kLateRank) return LeftGroup::Cause::kLateRank;
  if (text == kOtherWorker) return LeftGroup::Cause::kOtherWorker;
  return LeftGroup::Cause::kError;
}

std::optional<WorkerMessage> worker_message(Parsed parsed) {
  switch (parsed.number) {
    case Number::kKeepsState:
      return KeepsState{.reads_within = parsed.time(0)};
    case Number::kLeftGroup:
      return LeftGroup{.generation = parsed.generation,
                       .text = parsed.line(0),
                       .cause = cause_of(parsed.line(1)),
                       .step = parsed.number_of<std::int64_t>(2)};
    case Number::kTrainingDone:
      return TrainingDone{.is_complete = parsed.line(0) != kIncomplete};
    case Number::kStateFile:
      return StateFile{};
    case Number::kTookPlace:
      return TookRank{.generation = parsed.generation};
    case Number::kCallsFile:
      return CallsFile{};
    case Number::kPythonStacksPipe:
      return PythonStacksPipe{.signal = parsed.number_of<int>(0).value_or(0)};
    case Number::kWaitedInVain:
      if (parsed.lines.size() < 4) return std::nullopt;
      return DeadlineExpired{.operation = parsed.line(0),
                             .group = parsed.line(1),
                             .sequence = parsed.number_of<std::uint64_t>(2),
                             .waited = parsed.time(3)};
    case Number::kGivesUp:
      return CannotRecover{};
    case Number::kPlace:
    case Number::kLeaveGroup:
    case Number::kKeptStateFile:
      break;
  }
  return std::nullopt;
}

std::optional<LauncherMessage> launcher_message(Parsed parsed) {
  switch (parsed.number) {
    case Number::kPlace:
      return Place{.generation = parsed.generation, .environment = std::move(parsed.lines)};
    case Number::kLeaveGroup:
      return LeaveGroup{.generation = parsed.generation};
    case Number::kKeptStateFile:
      return KeptStateFile{};
    default:
      return std::nullopt;
  }
}

template <class Message>
std::optional<Received<Message>> receive(int link, const Deadline& deadline,
                                         std::optional<Message> (*to_message)(Parsed)) {
  while (auto frame = receive_frame(link, deadline)) {
    auto parsed = parse(frame->bytes);
    if (!parsed) continue;
    if (auto message = to_message(std::move(*parsed))) {
      return Received<Message>{.message = std::move(*message), .file = std::move(frame->file)};
    }
  }
  return std::nullopt;
}

}  // namespace

bool send_message(int link, const WorkerMessage& message, int file) noexcept {
  return send_encoded(link, message, file);
}

bool send_message(int link, const LauncherMessage& message, int file) noexcept {
  return send_encoded(link, message, file);
}

std::optional<Received<WorkerMessage>> receive_from_worker(int link, const Deadline& deadline) {
  return receive<WorkerMessage>(link, deadline, worker_message);
}

std::optional<Received<LauncherMessage>> receive_from_launcher(int link, const Deadline& deadline) {
  return receive<LauncherMessage>(link, deadline, launcher_message);
}

}  // namespace lockstep::inline internal
