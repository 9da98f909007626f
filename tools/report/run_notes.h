#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::inline internal {

/// One run, by runs.jsonl.
struct NotedRun {
  double begin_seconds = 0;  ///< since 1970
  std::optional<double> end_seconds = std::nullopt;
  std::int64_t first_step = 0;
  std::optional<std::int64_t> end_step = std::nullopt;
  int ranks = 0;
  std::string host = {};
  /// How it ended; empty: it was killed, or is still running.
  std::string how = {};
};

struct RunNotes {
  std::vector<NotedRun> runs = {};
  /// The machine of the last run: {"processor", "Xeon, 2 processors usable"}, …
  std::vector<std::pair<std::string, std::string>> machine = {};
  std::vector<std::string> problems = {};
};

/// Pure. `name`: the file's, for problems.
RunNotes parse_runs(std::string_view text, const std::string& name);

/// Reads runs.jsonl; nothing where there is none. Errors: SystemError.
RunNotes read_runs(const std::filesystem::path& folder);

struct NotedFile {
  std::string name;
  std::uint64_t size_bytes = 0;
};

/// Files and sharded snapshots of a folder, by name; none where there is no folder.
/// Errors: SystemError.
std::vector<NotedFile> files_in(const std::filesystem::path& folder);

/// "2026-11-23 09:30:00 UTC"; empty outside of this millennium.
std::string time_in_words(double seconds);

}  // namespace lockstep::inline internal
