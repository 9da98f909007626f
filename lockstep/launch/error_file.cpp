#include "lockstep/launch/error_file.h"

#include <fstream>

#include <nlohmann/json.hpp>

namespace lockstep {

std::string read_error_message(const std::filesystem::path& file) {
  // Workers may write anything: no more is read than a long Python traceback needs.
  constexpr std::size_t kMostBytes = 1 << 20;
  constexpr std::size_t kLongestMessageBytes = 1000;
  std::ifstream stream(file, std::ios::binary);
  std::string text(kMostBytes, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(stream.gcount()));

  const auto document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) return {};
  auto message = document.value("message", nlohmann::json());
  if (message.is_object()) message = message.value("message", nlohmann::json());
  if (!message.is_string()) return {};
  std::string line = message.get<std::string>();
  line.resize(std::min({line.size(), line.find('\n'), kLongestMessageBytes}));
  for (char& c : line) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7f) c = ' ';
  }
  return line;
}

}  // namespace lockstep
