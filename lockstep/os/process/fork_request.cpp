#include "lockstep/os/process/fork_request.h"

#include <cstdint>
#include <utility>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"

namespace lockstep::inline internal {
namespace {

void add(std::string& bytes, const std::string& field) {
  bytes += field;
  bytes += '\0';
}

void add(std::string& bytes, const std::vector<int>& numbers) {
  add(bytes, concat(numbers.size()));
  for (const int number : numbers) add(bytes, concat(number));
}

std::optional<std::string> take_field(std::string_view& bytes) {
  const auto end = bytes.find('\0');
  if (end == std::string_view::npos) return std::nullopt;
  std::string field(bytes.substr(0, end));
  bytes.remove_prefix(end + 1);
  return field;
}

std::optional<int> take_number(std::string_view& bytes) {
  const auto field = take_field(bytes);
  return field ? parse_number<int>(*field) : std::nullopt;
}

std::optional<std::vector<int>> take_numbers(std::string_view& bytes) {
  const auto count = take_number(bytes);
  if (!count) return std::nullopt;
  std::vector<int> numbers;
  for (int i = 0; i < *count; ++i) {
    const auto number = take_number(bytes);
    if (!number) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace

// Fields that end with a zero, which no line of an environment has.
std::string encoded(const ForkRequest& request) {
  std::string bytes;
  add(bytes, request.files);
  add(bytes, request.cpus);
  for (const std::string& line : request.environment) add(bytes, line);
  return bytes;
}

std::optional<ForkRequest> decoded_fork_request(std::string_view bytes) {
  auto files = take_numbers(bytes);
  if (!files || files->empty()) return std::nullopt;
  auto cpus = take_numbers(bytes);
  if (!cpus) return std::nullopt;
  ForkRequest request{.files = std::move(*files), .cpus = std::move(*cpus)};
  while (!bytes.empty()) {
    auto line = take_field(bytes);
    if (!line) return std::nullopt;
    request.environment.push_back(std::move(*line));
  }
  return request;
}

}  // namespace lockstep::inline internal
