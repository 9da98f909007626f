#include "lockstep/record/internal/hash_log.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/readable_file.h"
#include "lockstep/os/process/own_arguments.h"
#include "lockstep/record/internal/json_line.h"

namespace lockstep::inline internal {
namespace {

using nlohmann::ordered_json;

constexpr const char* kFile = "hashes.jsonl";
constexpr std::size_t kDigits = 16;

std::string hex(std::uint64_t hash) {
  char text[kDigits + 1];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

std::uint64_t from_hex(const std::string& text) {
  std::size_t used = 0;
  const std::uint64_t hash = std::stoull(text, &used, 16);
  if (text.size() != kDigits || used != kDigits) throw std::invalid_argument("no hash");
  return hash;
}

HashLog::Begin begin_from(const ordered_json& line) {
  return {.step = line.at("step"),
          .ranks = line.at("ranks"),
          .logical_shards = line.at("logical_shards"),
          .kernels = line.value("kernels", ""),
          .directory = line.at("directory"),
          .program = {.path = line.at("program"),
                      .arguments = line.at("arguments"),
                      .working_directory = line.at("working_directory")}};
}

void take_line(LoggedHashes& logged, const ordered_json& line) {
  const std::int64_t step = line.at("step");
  if (line.contains("event")) {
    logged.runs.push_back(begin_from(line));
    logged.steps.erase(logged.steps.upper_bound(step), logged.steps.end());
    return;
  }
  if (logged.runs.empty()) throw std::invalid_argument("a step before a begin");
  LoggedHashes::Step made{.run = logged.runs.size() - 1, .tensors = {}};
  for (const auto& item : line.at("tensors").items()) {
    made.tensors.push_back({item.key(), from_hex(item.value().get<std::string>())});
  }
  logged.steps.insert_or_assign(step, std::move(made));
}

bool has_hash(const TensorHashes& tensors, const TensorHash& wanted) {
  return std::ranges::find(tensors, wanted) != tensors.end();
}

}  // namespace

StartedProgram describe_own_program() {
  std::vector<std::string> arguments = own_arguments();
  if (!arguments.empty()) arguments.erase(arguments.begin());  // its name
  return {.path = std::filesystem::read_symlink("/proc/self/exe").string(),
          .arguments = std::move(arguments),
          .working_directory = std::filesystem::current_path().string()};
}

HashLog::HashLog(const std::filesystem::path& folder)
    : log_(folder / kFile, {.what = "write hashes to", .when_full = "free disk space"}) {}

void HashLog::begin(const Begin& begin) {
  log_.append(json_line({{"event", "begin"},
                         {"step", begin.step},
                         {"ranks", begin.ranks},
                         {"logical_shards", begin.logical_shards},
                         {"kernels", begin.kernels},
                         {"directory", begin.directory},
                         {"program", begin.program.path},
                         {"arguments", begin.program.arguments},
                         {"working_directory", begin.program.working_directory}}));
}

void HashLog::add(std::int64_t step, const TensorHashes& tensors) {
  ordered_json hashes = ordered_json::object();
  for (const auto& [name, hash] : tensors) hashes[name] = hex(hash);
  log_.append(json_line({{"step", step}, {"tensors", std::move(hashes)}}));
}

LoggedHashes read_hashes(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kFile;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw UsageError(concat("replay: ", folder.string(), " has no ", kFile,
                            "; train with log_hashes_every=N, such as 1"));
  }
  const std::string text = ReadableFile(path).text();
  LoggedHashes logged;
  std::size_t number = 0;
  for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    ++number;
    try {
      take_line(logged, ordered_json::parse(text.substr(begin, end - begin)));
    } catch (const std::exception&) {
      throw CorruptFile(concat("replay: ", path.string(), " line ", number,
                               " is damaged; only the training run may write this file"));
    }
  }
  return logged;
}

std::optional<HashDifference> first_difference(const LoggedHashes& expected,
                                               const LoggedHashes& actual) {
  for (const auto& [step, made] : actual.steps) {
    const auto logged = expected.steps.find(step);
    if (logged == expected.steps.end() || logged->second.tensors == made.tensors) continue;
    const TensorHashes& wanted = logged->second.tensors;
    HashDifference difference{.step = step, .tensor = {}, .differing = 0, .tensors = wanted.size()};
    const auto note = [&](const std::string& name) {
      if (difference.differing++ == 0) difference.tensor = name;
    };
    const auto has_name = [&](const std::string& name) {
      return std::ranges::find(wanted, name, &TensorHash::name) != wanted.end();
    };
    for (const TensorHash& one : wanted) {
      if (!has_hash(made.tensors, one)) note(one.name);
    }
    for (const TensorHash& one : made.tensors) {
      if (!has_name(one.name)) note(one.name);
    }
    if (difference.differing > 0) return difference;
  }
  return std::nullopt;
}

}  // namespace lockstep::inline internal
