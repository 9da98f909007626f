#include "launcher/remote/host_list.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/base/internal/text.h"

namespace lockstep::inline internal {
namespace {

constexpr int kMostSlots = 4'096;

// No more than what agents take part in a job.
constexpr std::size_t kMostHosts = 4'096;

int slots_of(const std::string& text, const std::string& where) {
  const auto slots = parse_number<int>(text);
  if (slots && *slots >= 1 && *slots <= kMostSlots) return *slots;
  throw UsageError(
      concat(where, ": '", text, "' is not a number of workers; write a:2 or slots=2"));
}

// "a", "user@a:2", "::1", "[::1]:2".
RemoteHost host_of(const std::string& text, const std::string& where) {
  RemoteHost host;
  std::string rest;
  const auto bracket = text.find('[');
  if (bracket != std::string::npos) {
    const auto end = text.find(']', bracket);
    if (end == std::string::npos) throw UsageError(concat(where, ": '", text, "' has no ]"));
    host.name = text.substr(0, bracket) + text.substr(bracket + 1, end - bracket - 1);
    rest = text.substr(end + 1);
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    host.name = text.substr(0, text.find(':'));
    rest = text.substr(text.find(':'));
  } else {
    host.name = text;
  }
  // What begins with a dash would be an option of ssh's.
  const bool good = !host.address().empty() && !host.name.starts_with("-") &&
                    !host.address().starts_with("-") &&
                    std::ranges::none_of(host.name, [](unsigned char c) { return c <= ' '; });
  if (!good || (!rest.empty() && rest[0] != ':')) {
    throw UsageError(concat(where, ": '", text, "' is not a machine; write a, user@a or a:2"));
  }
  if (!rest.empty()) host.slots = slots_of(rest.substr(1), where);
  return host;
}

void check(const std::vector<RemoteHost>& hosts, const std::string& where) {
  if (hosts.empty()) throw UsageError(concat(where, ": no machine given"));
  if (hosts.size() > kMostHosts) {
    throw UsageError(concat(where, ": ", hosts.size(), " hosts; at most ", kMostHosts));
  }
  for (auto host = hosts.begin(); host != hosts.end(); ++host) {
    const bool twice = std::any_of(
        hosts.begin(), host, [&](const RemoteHost& other) { return other.name == host->name; });
    if (!twice) continue;
    throw UsageError(
        concat(where, ": ", host->name,
               " is listed twice; each machine has one launcher for all its workers: write ",
               host->name, ":2"));
  }
}

// "slots=2" and the like behind a host. Open MPI's max_slots (max-slots) bounds what asks for more.
void take_word(RemoteHost& host, const std::string& word, const std::string& where) {
  if (word.starts_with("slots=")) {
    host.slots = slots_of(word.substr(word.find('=') + 1), where);
  } else if (!word.starts_with("max_slots=") && !word.starts_with("max-slots=")) {
    throw UsageError(
        concat(where, ": '", word, "' is unknown; write a machine and slots=N per line"));
  }
}

}  // namespace

std::string RemoteHost::address() const {
  const auto at = name.rfind('@');
  return at == std::string::npos ? name : name.substr(at + 1);
}

std::vector<RemoteHost> parse_host_list(const std::string& text) {
  const std::string where = concat("--hosts='", text, "'");
  std::vector<RemoteHost> hosts;
  for (const std::string& entry : comma_list(text)) hosts.push_back(host_of(entry, where));
  check(hosts, where);
  return hosts;
}

std::vector<RemoteHost> parse_host_file(const std::string& content, const std::string& name) {
  std::vector<RemoteHost> hosts;
  std::istringstream lines(content);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = concat(name, " line ", ++number);
    std::istringstream words(line.substr(0, line.find('#')));
    std::string word;
    if (!(words >> word)) continue;
    RemoteHost host = host_of(word, where);
    while (words >> word) take_word(host, word, where);
    hosts.push_back(host);
  }
  check(hosts, name);
  return hosts;
}

std::vector<RemoteHost> read_hosts(const std::string& text) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(text, error)) {
    const bool exists = std::filesystem::exists(text, error);
    if (exists || text.find('/') != std::string::npos) {
      throw UsageError(concat("--hosts=", text, ": ",
                              exists ? "is no file" : "there is no such file",
                              "; give a file with a machine per line, or a list: a:2,b:2"));
    }
    return parse_host_list(text);
  }
  std::ifstream file(text);
  std::ostringstream content;
  content << file.rdbuf();
  if (!file) throw UsageError(concat("--hosts=", text, ": cannot be read"));
  return parse_host_file(content.str(), text);
}

}  // namespace lockstep::inline internal
