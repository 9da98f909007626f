#include "tools/report/run_notes.h"

#include <algorithm>
#include <ctime>
#include <system_error>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/os/files/readable_file.h"

namespace lockstep::inline internal {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::vector<std::pair<std::string, std::string>> describe(const json& begin) {
  std::vector<std::pair<std::string, std::string>> words;
  const json machine = begin.value("machine", json::object());
  words.emplace_back("machine", machine.value("host", ""));
  words.emplace_back("processor",
                     concat(machine.value("processor", ""), ", ",
                            count_text(machine.value("processors", 0), "processor"), " usable"));
  words.emplace_back("memory", size_text(machine.value("memory_bytes", 0.0)));
  std::string devices;
  for (const json& device : machine.value("devices", json::array())) {
    devices += concat(devices.empty() ? "" : ", ", device.get<std::string>());
  }
  words.emplace_back("GPUs", devices.empty() ? "none" : devices);
  words.emplace_back("system", machine.value("system", ""));
  const json versions = begin.value("versions", json::object());
  for (const auto& [name, version] : versions.items()) {
    words.emplace_back(name, version.get<std::string>());
  }
  return words;
}

void take(RunNotes& notes, const json& line) {
  if (line.value("event", "") == "begin") {
    notes.runs.push_back({.begin_seconds = line.at("time"),
                          .first_step = line.at("step"),
                          .ranks = line.value("ranks", 1),
                          .host = line.value("machine", json::object()).value("host", "")});
    notes.machine = describe(line);
  } else if (!notes.runs.empty()) {
    NotedRun& run = notes.runs.back();
    run.end_seconds = line.at("time").get<double>();
    run.end_step = line.at("step").get<std::int64_t>();
    run.how = line.at("how");
  }
}

std::uint64_t bytes_in(const fs::path& folder) {
  std::uint64_t bytes = 0;
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator(folder, gone)) {
    std::error_code error;
    const std::uint64_t size = entry.file_size(error);
    if (!error) bytes += size;
  }
  return bytes;
}

}  // namespace

RunNotes parse_runs(std::string_view text, const std::string& name) {
  RunNotes notes;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    try {
      if (!line.empty()) take(notes, json::parse(line));
    } catch (const json::exception&) {
      notes.problems.push_back(concat(name, ": line ", number, " is damaged, left out"));
    }
  }
  return notes;
}

RunNotes read_runs(const fs::path& folder) {
  const fs::path path = folder / "runs.jsonl";
  std::error_code error;
  if (!fs::exists(path, error)) return {};
  return parse_runs(ReadableFile(path).text(), "runs.jsonl");
}

std::vector<NotedFile> files_in(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return {};
  std::vector<NotedFile> files;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code gone;
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".")) continue;
    if (entry.is_regular_file(gone)) {
      files.push_back({.name = name, .size_bytes = entry.file_size(gone)});
    } else if (fs::exists(entry.path() / "manifest.json", gone)) {
      files.push_back({.name = name + "/", .size_bytes = bytes_in(entry.path())});
    }
  }
  if (error)
    throw SystemError(concat("list ", folder), error.value(), "choose a folder that you may read");
  std::ranges::sort(files, {}, &NotedFile::name);
  return files;
}

std::string time_in_words(double seconds) {
  constexpr double kYear3000 = 32503680000;
  if (!(seconds >= 0 && seconds < kYear3000)) return {};
  const auto whole = static_cast<std::time_t>(seconds);
  std::tm parts{};
  char text[40];
  if (::gmtime_r(&whole, &parts) == nullptr ||
      std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts) == 0) {
    return {};
  }
  return text;
}

}  // namespace lockstep::inline internal
