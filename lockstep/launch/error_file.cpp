#include "lockstep/launch/error_file.h"

#include <fstream>

#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

std::string printable_first_line(std::string text) {
  constexpr std::size_t kLongestMessageBytes = 1000;
  text.resize(std::min({text.size(), text.find('\n'), kLongestMessageBytes}));
  for (char& c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7f) c = ' ';
  }
  return text;
}

nlohmann::json parse_file(const std::filesystem::path& file) {
  // Workers may write anything: no more is read than a long Python traceback needs.
  constexpr std::size_t kMostBytes = 1 << 20;
  std::ifstream stream(file, std::ios::binary);
  std::string text(kMostBytes, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(stream.gcount()));

  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace

ErrorReport read_error_file(const std::filesystem::path& file) {
  const nlohmann::json document = parse_file(file);
  if (!document.is_object()) return {};
  auto message = document.value("message", nlohmann::json());
  nlohmann::json code;
  if (message.is_object()) {
    code = message.value("errorCode", nlohmann::json());
    message = message.value("message", nlohmann::json());
  }
  if (!message.is_string()) return {};
  ErrorReport report{.message = printable_first_line(message.get<std::string>())};
  // Anything else is no failure's exit code.
  if (code.is_number_unsigned() && code >= 1U && code <= 255U) report.exit_code = code.get<int>();
  return report;
}

std::optional<std::string> error_document(const std::filesystem::path& file) {
  const nlohmann::json document = parse_file(file);
  if (!document.is_object()) return std::nullopt;
  return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace lockstep
