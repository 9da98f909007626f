#include "tests/fuzz/differential/arguments.h"

#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/base/internal/text.h"

namespace lockstep::differential {
namespace {

constexpr int kMostRanks = 4;                     // draw() gives more ranks the seeds of others
constexpr std::uint64_t kMostSeeds = 10'000'000;  // days of work, and 80 MB

[[noreturn]] void refuse_value(const std::string& flag, const std::string& value,
                               const std::string& cure) {
  throw UsageError(concat("differential: ", flag, "='", value, "': ", cure));
}

void add_seeds(const std::string& flag, const std::string& value,
               std::vector<std::uint64_t>& seeds) {
  const auto colon = value.find(':');
  const auto first = parse_number<std::uint64_t>(value.substr(0, colon));
  const auto count = colon == std::string::npos
                         ? std::optional<std::uint64_t>(1)
                         : parse_number<std::uint64_t>(value.substr(colon + 1));
  if (!first || !count || *count < 1 || *count > kMostSeeds) {
    refuse_value(flag, value,
                 concat("give a seed from 0, or the first and how many, 1 to ", kMostSeeds,
                        ", as in 1:500"));
  }
  for (std::uint64_t i = 0; i < *count; ++i) seeds.push_back(*first + i);
}

// Lines "<ranks> <seed>"; # begins a remark.
void add_kept_seeds(const std::string& path, int ranks, std::vector<std::uint64_t>& seeds) {
  std::ifstream file(path);
  if (!file) refuse_value("--kept", path, "cannot be read; give a file of lines '<ranks> <seed>'");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string first;
    std::string second;
    std::string third;
    if (!(words >> first)) continue;
    words >> second >> third;
    const auto of_ranks = parse_number<int>(first);
    const auto seed = parse_number<std::uint64_t>(second);
    if (!of_ranks || !seed || !third.empty()) {
      refuse_value("--kept", path, concat("the line '", line, "' is not '<ranks> <seed>'"));
    }
    if (*of_ranks == ranks) seeds.push_back(*seed);
  }
}

std::vector<std::size_t> cut_numbers_of(const std::string& value) {
  std::vector<std::size_t> result;
  for (const std::string& entry : comma_list(value)) {
    const auto number = parse_number<std::size_t>(entry);
    if (!number) refuse_value("--cuts", value, "give numbers of cuts, as in 12,0,3");
    result.push_back(*number);
  }
  return result;
}

// Those of the job that a launcher started, else those of --ranks.
int ranks_of(const std::string& given) {
  const auto launched = env::integer(env::kWorldSize);
  const std::string cure = concat("give a number of ranks from 1 to ", kMostRanks);
  if (launched && (*launched < 1 || *launched > kMostRanks)) {
    refuse_value("WORLD_SIZE", concat(*launched), cure);
  }
  if (given.empty()) return static_cast<int>(launched.value_or(1));
  const auto ranks = parse_number<int>(given);
  if (!ranks || *ranks < 1 || *ranks > kMostRanks) refuse_value("--ranks", given, cure);
  if (launched && *launched != *ranks) {
    refuse_value("--ranks", given, concat("the job has ", *launched, " ranks; leave the flag out"));
  }
  return *ranks;
}

// What a flag that takes no value sets, or null.
bool* switch_of(const std::string& flag, Arguments& arguments) {
  if (flag == "--shards") return &arguments.in_shards;
  if (flag == "--units") return &arguments.in_units;
  if (flag == "--print") return &arguments.prints;
  if (flag == "--program") return &arguments.prints_program;
  if (flag == "--until-failure") return &arguments.stops;
  if (flag == "--probe") return &arguments.probes;
  return nullptr;
}

// Values that are read when all arguments are known.
struct Texts {
  std::vector<std::pair<std::string, std::string>> seeds;  ///< flag and value, several times
  std::string kept;
  std::string cuts;
  std::string ranks;
};

// What a flag that takes a value fills, or null.
std::string* given_text(const std::string& flag, Arguments& arguments, Texts& texts) {
  if (flag == "--seed" || flag == "--seeds") return &texts.seeds.emplace_back(flag, "").second;
  if (flag == "--kept") return &texts.kept;
  if (flag == "--cuts") return &texts.cuts;
  if (flag == "--ranks") return &texts.ranks;
  if (flag == "--progress") return &arguments.progress;
  if (flag == "--shrink") return &arguments.shrinks_with;
  return nullptr;
}

void read_argument(const std::string& argument, Arguments& arguments, Texts& texts) {
  const auto equals = argument.find('=');
  const bool has_value = equals != std::string::npos;
  const std::string flag = argument.substr(0, equals);
  if (bool* const given = switch_of(flag, arguments)) {
    if (has_value) {
      throw UsageError(
          concat("differential: ", flag, " takes no value; leave out what follows it"));
    }
    *given = true;
  } else if (std::string* const text = given_text(flag, arguments, texts)) {
    if (has_value) *text = argument.substr(equals + 1);
    if (text->empty()) throw UsageError(concat("differential: ", flag, " needs a value"));
  } else {
    throw UsageError(concat("differential: unknown argument '", argument,
                            "'; there are --seeds, --seed, --kept, --ranks, --cuts, --progress, "
                            "--shards, --units, --until-failure, --print, --program, --shrink and "
                            "--probe"));
  }
}

void check_seeds(const Arguments& arguments, const std::string& kept) {
  if (arguments.seeds.empty()) {
    throw UsageError(
        kept.empty() ? "differential: no seeds; give --seeds=FIRST:COUNT, --seed=N or --kept=FILE"
                     : concat("differential: --kept='", kept, "': no seed of ", arguments.ranks,
                              " ranks is in it; give another file, or --seeds"));
  }
  const bool takes_one = arguments.probes || !arguments.shrinks_with.empty();
  if (takes_one && arguments.seeds.size() != 1) {
    throw UsageError(concat("differential: ", arguments.probes ? "--probe" : "--shrink",
                            " takes one seed, but has ", arguments.seeds.size(),
                            "; give --seed=N once"));
  }
}

}  // namespace

Arguments parse_arguments(int argc, const char* const* argv) {
  Arguments arguments;
  Texts texts;
  for (int i = 1; i < argc; ++i) read_argument(argv[i], arguments, texts);
  arguments.ranks = ranks_of(texts.ranks);
  if (!texts.kept.empty()) add_kept_seeds(texts.kept, arguments.ranks, arguments.seeds);
  for (const auto& [flag, value] : texts.seeds) add_seeds(flag, value, arguments.seeds);
  arguments.cuts = cut_numbers_of(texts.cuts);
  check_seeds(arguments, texts.kept);
  return arguments;
}

}  // namespace lockstep::differential
