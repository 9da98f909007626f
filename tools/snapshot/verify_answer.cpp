#include <array>
#include <map>
#include <system_error>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/readable_file.h"
#include "lockstep/snapshot/checkpoint.h"
#include "lockstep/snapshot/checkpoint/checksum_list.h"
#include "lockstep/snapshot/checkpoint/tensor_limits.h"
#include "lockstep/snapshot/checkpoint/verify_checkpoint.h"
#include "lockstep/snapshot/internal/checksum.h"
#include "lockstep/snapshot/internal/saved_file.h"
#include "lockstep/snapshot/internal/snapshot_list.h"
#include "lockstep/snapshot/internal/value_tree.h"
#include "lockstep/snapshot/pickle/not_a_checkpoint.h"
#include "lockstep/snapshot/pickle/zip_reader.h"
#include "lockstep/snapshot/safetensors.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/sharded/snapshot_manifest.h"
#include "tools/snapshot/snapshot_answers.h"
#include "tools/snapshot/text_table.h"

namespace lockstep::inline internal {
namespace {

constexpr std::size_t kNamedTensors = 3;  // of a damaged record
constexpr const char* kNoCrc =
    "from another program, without a CRC: only the structure was verified";

enum class Condition {
  kWhole,
  kDamaged,
  kAbsent,
  kUnknown,  ///< of another kind than can be verified
};

struct Verdict {
  std::filesystem::path path;
  Condition condition = Condition::kWhole;
  std::vector<std::string> problems = {};  ///< none: it is whole
  std::string note = {};                   ///< limits of the check
};

const char* condition_name(Condition condition) {
  constexpr std::array kNames = {"whole", "damaged", "absent", "unknown"};
  return kNames.at(static_cast<std::size_t>(condition));
}

/// Of a line of the text, as wide as the others.
const char* heading(Condition condition) {
  constexpr std::array kHeadings = {"whole    ", "DAMAGED  ", "ABSENT   ", "UNKNOWN  "};
  return kHeadings.at(static_cast<std::size_t>(condition));
}

/// Names of the tensors in each record of the archive, where its pickle can still be read.
std::map<std::string, std::string> tensors_by_record(const ReadableFile& file) {
  std::map<std::string, std::string> names;
  std::map<std::string, std::size_t> counts;
  try {
    const Outline outline = load_outline(file);
    visit_tensors(outline.tree, [&](const std::string& name, const at::Tensor& tensor) {
      const auto record = outline.records.find(tensor.storage().unsafeGetStorageImpl());
      if (record == outline.records.end()) return;
      const std::size_t count = ++counts[record->second.name];
      if (count > kNamedTensors + 1) return;
      std::string& text = names[record->second.name];
      text += concat(text.empty() ? "" : ", ",
                     count > kNamedTensors ? "…" : name.substr(0, kMaxTensorNameBytes));
    });
  } catch (const Error&) {
    names.clear();
  }
  return names;
}

/// Where a damaged archive is damaged.
std::vector<std::string> damaged_regions(const ReadableFile& file) {
  std::vector<std::string> regions;
  try {
    const ZipReader archive(file);
    const auto names = tensors_by_record(file);
    for (const auto& [name, record] : archive.records()) {
      if (archive.is_intact(record)) continue;
      const auto tensors = names.find(name);
      regions.push_back(concat("record '", name, "' at byte ", record.offset_bytes, ", ",
                               record.size_bytes, " bytes",
                               tensors == names.end() ? "" : ": " + tensors->second));
    }
  } catch (const Error& error) {
    regions.push_back(error.what());
    return regions;
  }
  if (regions.empty()) {
    regions.push_back(
        "the archive's structure, between its records or in its comment; the CRC of every tensor "
        "is "
        "right");
  }
  return regions;
}

void add_problem(Verdict& verdict, const Error& error, const std::filesystem::path& archive = {}) {
  verdict.condition = Condition::kDamaged;
  verdict.problems.emplace_back(error.what());
  if (archive.empty()) return;
  try {
    for (const std::string& region : damaged_regions(ReadableFile(archive))) {
      verdict.problems.push_back(concat("damaged: ", region));
    }
  } catch (const Error&) {
    // It cannot be read at all, which the first problem says.
  }
}

void verify_file(Verdict& verdict) {
  if (is_safetensors(verdict.path)) {
    read_safetensors(verdict.path);
    if (!verify_checksum_list(verdict.path)) {
      verdict.note = "safetensors have no checksum: only the structure was verified";
    }
  } else if (const ReadableFile file(verdict.path); !verify_checksum(file)) {
    load(verdict.path);
    verdict.note = ZipReader(file).has_crcs()
                       ? "from another program: verified by the CRC of each record"
                       : kNoCrc;
  } else {
    load(verdict.path);
  }
}

/// Of another program, or of `convert`.
void verify_folder(Verdict& verdict) {
  const CheckpointReader reader(verdict.path, {.part = CheckpointPart::kAll});
  switch (verify_checkpoint(reader, CheckpointPart::kAll)) {
    case VerifiedBy::kChecksum:
      break;
    case VerifiedBy::kCrc:
      verdict.note = "from another program: verified by the CRC of each piece";
      break;
    case VerifiedBy::kNothing:
      verdict.note = reader.format() == CheckpointFormat::kDistributed
                         ? kNoCrc
                         : "safetensors have no checksum: only the structure was verified";
  }
}

void verify_directory(Verdict& verdict) {
  if (is_checkpoint_folder(verdict.path)) return verify_folder(verdict);
  const SnapshotManifest manifest = read_manifest(verdict.path / kManifestName);
  for (const ManifestFile& expected : manifest.files) {
    const std::filesystem::path path = verdict.path / expected.name;
    try {
      const ReadableFile file(path);
      if (digest_of(file) != expected.digest) {
        throw CorruptFile(concat("verify ", path, ": it is not the file that was written: ",
                                 file.size_bytes(), " of ", expected.digest.size_bytes, " bytes"));
      }
    } catch (const CorruptFile& error) {
      add_problem(verdict, error, path);
    } catch (const SystemError& error) {
      add_problem(verdict, error);
    }
  }
}

Verdict verdict_of(const std::filesystem::path& path) {
  Verdict verdict{.path = path};
  std::error_code unknown;
  const std::filesystem::file_status status = std::filesystem::status(path, unknown);
  const bool is_directory = std::filesystem::is_directory(status);
  if (status.type() == std::filesystem::file_type::not_found) {
    verdict.condition = Condition::kAbsent;
    verdict.problems.emplace_back("no such file or directory");
    return verdict;
  }
  try {
    is_directory ? verify_directory(verdict) : verify_file(verdict);
  } catch (const NotACheckpoint& error) {
    verdict.condition = Condition::kUnknown;
    verdict.problems.push_back(
        concat("a pickled module or other object, not a checkpoint: ", error.what()));
  } catch (const CorruptFile& error) {
    add_problem(verdict, error, is_directory || is_safetensors(path) ? "" : path);
  } catch (const Error& error) {
    add_problem(verdict, error);
  }
  return verdict;
}

/// The path, or all snapshots in it where it is their directory.
std::vector<std::filesystem::path> snapshots_at(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error) ||
      std::filesystem::exists(path / kManifestName, error) || is_checkpoint_folder(path) ||
      SnapshotName::parse(path.filename().native())) {
    return {path};
  }
  std::vector<std::filesystem::path> paths;
  const SnapshotList list = list_snapshots(path);
  for (const SnapshotName& name : list.present) paths.push_back(path / name.file_name());
  if (paths.empty()) {
    throw UsageError(
        concat("snapshot verify: ", path, " has no snapshots; name their directory, or a file"));
  }
  return paths;
}

}  // namespace

SnapshotAnswer verify_answer(const std::vector<std::filesystem::path>& paths, bool json) {
  SnapshotAnswer answer;
  nlohmann::ordered_json objects = nlohmann::ordered_json::array();
  for (const std::filesystem::path& named : paths) {
    for (const std::filesystem::path& path : snapshots_at(named)) {
      const Verdict verdict = verdict_of(path);
      const bool is_whole = verdict.condition == Condition::kWhole;
      if (!is_whole) answer.exit_code = 1;
      nlohmann::ordered_json object = {{"path", path.string()},
                                       {"whole", is_whole},
                                       {"condition", condition_name(verdict.condition)}};
      object["problems"] = verdict.problems;
      if (!verdict.note.empty()) object["note"] = verdict.note;
      objects.push_back(object);
      if (json) continue;
      answer.text += concat(heading(verdict.condition), path.string(),
                            verdict.note.empty() ? "" : concat(" (", verdict.note, ")"), "\n");
      for (const std::string& problem : verdict.problems) {
        answer.text += concat("         ", problem, "\n");
      }
    }
  }
  if (json) answer.text = json_text(objects);
  return answer;
}

}  // namespace lockstep::inline internal
