#include "lockstep/data/sample_log.h"

#include <algorithm>
#include <fstream>

#include "lockstep/base/concat.h"
#include "lockstep/base/parse_number.h"

namespace lockstep {
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

void SampleLog::begin(int number, std::int64_t dataset_size, std::uint64_t seed,
                      std::int64_t least_of_epoch) {
  log_.append(concat(kRunBegins, writer_.run, ",\"event\":\"begin\",\"loader\":", number,
                     ",\"rank\":", writer_.rank, ",\"world_size\":", writer_.world_size,
                     ",\"dataset_size\":", dataset_size, ",\"seed\":", seed,
                     ",\"least_of_epoch\":", least_of_epoch, "}\n"));
}

void SampleLog::leave(int number, const DataCursor& cursor) {
  log_.append(concat(kRunBegins, writer_.run, ",\"event\":\"leave\",\"loader\":", number,
                     ",\"epoch\":", cursor.epoch, ",\"consumed\":", cursor.consumed, "}\n"));
}

void SampleLog::go_to(int number, const DataCursor& cursor) {
  log_.append(concat(kRunBegins, writer_.run, ",\"event\":\"go_to\",\"loader\":", number,
                     ",\"epoch\":", cursor.epoch, ",\"consumed\":", cursor.consumed, "}\n"));
}

void SampleLog::batch(int number, std::int64_t epoch, const SampleRange& batch,
                      std::span<const std::size_t> samples) {
  std::string line = concat(kRunBegins, writer_.run, ",\"event\":\"batch\",\"loader\":", number,
                            ",\"epoch\":", epoch, ",\"begin\":", batch.begin,
                            ",\"end\":", batch.begin + batch.size, ",\"samples\":[");
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

}  // namespace lockstep
