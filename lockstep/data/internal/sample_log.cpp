#include "lockstep/data/internal/sample_log.h"

#include <algorithm>
#include <fstream>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"

namespace lockstep::inline internal {
namespace {

constexpr const char* kFileBegins = "samples.rank";
constexpr const char* kRunBegins = "{\"run\":";
constexpr std::int64_t kTail = 4096;  // bytes

std::filesystem::path file_of(const std::filesystem::path& folder, int rank) {
  return folder / concat(kFileBegins, rank, ".jsonl");
}

// Runs follow each other in a file: the last line that is found from its end on has the last one.
std::int64_t last_run_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(0, std::ios::end);
  const std::int64_t size = file.tellg();
  for (std::int64_t window = kTail; file; window *= 2) {
    std::string tail(static_cast<std::size_t>(std::min(window, size)), '\0');
    file.seekg(size - static_cast<std::int64_t>(tail.size()));
    file.read(tail.data(), static_cast<std::streamsize>(tail.size()));
    tail.erase(tail.rfind('\n') + 1);  // A line that a killed process did not complete.
    const std::size_t at = tail.rfind(kRunBegins);
    if (at != std::string::npos) {
      const std::string number = tail.substr(at + std::string_view(kRunBegins).size());
      return parse_number<std::int64_t>(number.substr(0, number.find(','))).value_or(0);
    }
    if (window >= size) break;
  }
  return 0;
}

}  // namespace

SampleLog::SampleLog(const std::filesystem::path& folder, const Writer& writer)
    : log_(file_of(folder, writer.rank), {.what = "write the log of samples",
                                          .when_full = "free disk space, or leave the log out"}),
      writer_(writer) {}

void SampleLog::begin(const Loader& loader) {
  log_.append(concat(kRunBegins, writer_.run, ",\"event\":\"begin\",\"loader\":", loader.number,
                     ",\"rank\":", writer_.rank, ",\"world_size\":", writer_.world_size,
                     ",\"dataset_size\":", loader.dataset_size, ",\"seed\":", loader.seed,
                     ",\"least_of_epoch\":", loader.least_of_epoch,
                     ",\"limit_batches\":", loader.limit_batches, "}\n"));
}

void SampleLog::leave(int number, const DataCursor& cursor) {
  log_.append(concat(kRunBegins, writer_.run, ",\"event\":\"leave\",\"loader\":", number,
                     ",\"epoch\":", cursor.epoch, ",\"consumed\":", cursor.consumed, "}\n"));
}

void SampleLog::go_to(int number, const DataCursor& cursor) {
  log_.append(concat(kRunBegins, writer_.run, ",\"event\":\"go_to\",\"loader\":", number,
                     ",\"epoch\":", cursor.epoch, ",\"consumed\":", cursor.consumed, "}\n"));
}

void SampleLog::batch(const Batch& batch, std::span<const std::size_t> samples) {
  const SampleRange& range = batch.samples;
  std::string line =
      concat(kRunBegins, writer_.run, ",\"event\":\"batch\",\"loader\":", batch.number,
             ",\"epoch\":", batch.epoch, ",\"begin\":", range.begin, ",\"end\":", range.end(),
             batch.is_last ? ",\"last\":true" : "", ",\"samples\":[");
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (i > 0) line += ',';
    line += std::to_string(samples[i]);
  }
  log_.append(line + "]}\n");
}

std::int64_t SampleLog::last_run(const std::filesystem::path& folder) {
  std::int64_t last = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!entry.path().filename().string().starts_with(kFileBegins)) continue;
    last = std::max(last, last_run_of(entry.path()));
  }
  return last;
}

}  // namespace lockstep::inline internal
