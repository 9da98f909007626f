#include "launcher/remote/hosted_request.h"

#include <algorithm>
#include <csignal>

#include <nlohmann/json.hpp>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"

namespace lockstep::inline internal {
namespace {

using nlohmann::json;

constexpr const char* kSignal = "signal ";
// A character that no text has.
constexpr char kMarkBegin = '\x1e';

std::optional<std::vector<std::string>> texts_of(const json& object, const char* name) {
  std::vector<std::string> texts;
  if (!object.contains(name) || !object[name].is_array()) return std::nullopt;
  for (const json& text : object[name]) {
    // An empty text is one too, but nothing with an end in its middle is.
    if (!text.is_string() || text.get_ref<const std::string&>().find('\0') != std::string::npos) {
      return std::nullopt;
    }
    texts.push_back(text);
  }
  return texts;
}

bool is_text(const json& object, const char* name) {
  return object.contains(name) && object[name].is_string();
}

bool is_count(const json& object, const char* name) {
  return object.contains(name) && object[name].is_number_unsigned();
}

std::string mark(const std::string& marker, const std::string& what) {
  return concat(kMarkBegin, "lockstep ", marker, " ", what);
}

// JSON has text only, and file names may be any bytes: those of Latin-1, as characters of their
// own.
std::string widened(const std::string& bytes) {
  std::string text;
  for (const unsigned char c : bytes) {
    if (c >= 0x80) text += static_cast<char>(0xc0 | (c >> 6));
    text += static_cast<char>(c >= 0x80 ? 0x80 | (c & 0x3f) : c);
  }
  return text;
}

std::string narrowed(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x80 || i + 1 == text.size()) {
      bytes += text[i];
    } else {
      bytes +=
          static_cast<char>(((c & 0x03) << 6) | (static_cast<unsigned char>(text[++i]) & 0x3f));
    }
  }
  return bytes;
}

template <class Change>
std::vector<std::string> each(std::vector<std::string> texts, const Change& change) {
  for (std::string& text : texts) text = change(text);
  return texts;
}

}  // namespace

std::string encode(const HostedRequest& request) {
  return json({{"arguments", each(request.arguments, widened)},
               {"directory", widened(request.directory)},
               {"environment", each(request.environment, widened)},
               {"marker", widened(request.marker)},
               {"silence_ms", request.silence.count()},
               {"patience_ms", request.patience.count()}})
      .dump();
}

std::optional<HostedRequest> decode_hosted_request(std::string_view text) {
  const json object = json::parse(text, nullptr, false);
  if (!object.is_object()) return std::nullopt;
  const auto arguments = texts_of(object, "arguments");
  const auto environment = texts_of(object, "environment");
  const bool good = arguments && environment && is_text(object, "directory") &&
                    is_text(object, "marker") && is_count(object, "silence_ms") &&
                    is_count(object, "patience_ms");
  if (!good) return std::nullopt;
  return HostedRequest{.arguments = each(*arguments, narrowed),
                       .directory = narrowed(object["directory"]),
                       .environment = each(*environment, narrowed),
                       .marker = narrowed(object["marker"]),
                       .silence = std::chrono::milliseconds(object["silence_ms"]),
                       .patience = std::chrono::milliseconds(object["patience_ms"])};
}

std::chrono::milliseconds heartbeat_interval(std::chrono::milliseconds silence) {
  constexpr std::chrono::milliseconds kLongest{5'000};
  return std::min(kLongest, silence / 4);
}

std::string signal_line(int signal) {
  return concat(kSignal, signal);
}

std::optional<int> signal_in(std::string_view line) {
  if (!line.starts_with(kSignal)) return std::nullopt;
  const auto signal = parse_number<int>(line.substr(std::string_view(kSignal).size()));
  if (!signal || *signal < 1 || *signal >= NSIG) return std::nullopt;
  return signal;
}

std::string begun_mark(const std::string& marker) {
  return mark(marker, "begun");
}

std::string ended_mark(const std::string& marker, int status) {
  return mark(marker, concat("ended ", status));
}

MarkedLine read_marks(const std::string& line, const std::string& marker) {
  const std::string begin = mark(marker, "");
  const auto at = line.find(begin);
  if (at == std::string::npos) return {.text = line};
  MarkedLine result{.text = line.substr(0, at)};
  const std::string what = line.substr(at + begin.size());
  constexpr std::string_view kEnded = "ended ";
  result.begun = what == "begun";
  if (what.starts_with(kEnded)) result.ended = parse_number<int>(what.substr(kEnded.size()));
  return result;
}

}  // namespace lockstep::inline internal
