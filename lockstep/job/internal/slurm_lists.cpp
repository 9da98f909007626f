#include "lockstep/job/internal/slurm_lists.h"

#include <charconv>

namespace lockstep::inline internal {
namespace {

// Takes a number from the front of `text`.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::optional<std::string> first_host(std::string_view hosts) {
  std::string host;
  while (!hosts.empty() && hosts.front() != ',') {
    if (!take(hosts, "[")) {
      if (hosts.front() == ']') return std::nullopt;
      host += hosts.front();
      hosts.remove_prefix(1);
      continue;
    }
    const auto close = hosts.find(']');
    const auto first = hosts.substr(0, hosts.find_first_of(",-]"));
    if (close == std::string_view::npos || first.empty()) return std::nullopt;
    host += first;
    hosts.remove_prefix(close + 1);
  }
  if (host.empty()) return std::nullopt;
  return host;
}

std::optional<int> tasks_on_node(std::string_view tasks_per_node, int node) {
  for (;;) {
    const auto tasks = take_number(tasks_per_node);
    if (!tasks) return std::nullopt;
    std::optional<int> nodes = 1;
    if (take(tasks_per_node, "(x")) {
      nodes = take_number(tasks_per_node);
      if (!nodes || !take(tasks_per_node, ")")) return std::nullopt;
    }
    if (node < *nodes) return tasks;
    node -= *nodes;
    if (!take(tasks_per_node, ",")) return std::nullopt;
  }
}

}  // namespace lockstep::inline internal
