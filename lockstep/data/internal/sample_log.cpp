#include "lockstep/data/internal/sample_log.h"

#include <algorithm>
#include <fstream>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"

namespace lockstep::inline internal {
namespace {

std::filesystem::path file_of(const std::filesystem::path& folder, int rank) {
  return folder / concat("samples.rank", rank, ".jsonl");
}

constexpr const char* kRunBegins = "{\"run\":";

}  // namespace

SampleLog::SampleLog(const std::filesystem::path& folder, const Writer& writer)
    : log_(file_of(folder, writer.rank),
           {.what = "write the log of samples", .when_full = "make room, or leave the log out"}),
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
  std::ifstream file(file_of(folder, 0));
  std::int64_t last = 0;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kRunBegins)) continue;
    const std::string rest = line.substr(std::string(kRunBegins).size());
    last = std::max(last, parse_number<std::int64_t>(rest.substr(0, rest.find(','))).value_or(0));
  }
  return last;
}

}  // namespace lockstep::inline internal
