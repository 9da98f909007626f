#include "lockstep/snapshot/sharded/snapshot_manifest.h"

#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/readable_file.h"
#include "lockstep/snapshot/internal/file_name.h"

namespace lockstep::inline internal {
namespace {

using Json = nlohmann::ordered_json;

/// To be raised when older readers would misread a newer manifest.
constexpr std::int64_t kManifestFormat = 1;
constexpr std::string_view kBeforeChecksum = ",\n \"checksum\": \"xxh3:";
constexpr std::string_view kAfterChecksum = "\"\n}\n";
constexpr std::size_t kChecksumDigits = 32;
/// A hundred bytes a tensor: a million tensors stay below it.
constexpr std::uint64_t kMaxManifestBytes = 256u << 20;

[[noreturn]] void refuse_manifest(const std::string& source, const std::string& what) {
  throw CorruptFile(concat(source, ": ", what,
                           "; it is damaged, or no manifest of a snapshot: take another copy, or "
                           "delete the snapshot"));
}

/// What of the text the checksum covers, once that is found right.
std::string_view checked_part(std::string_view text, const std::string& source) {
  if (!text.ends_with(kAfterChecksum)) refuse_manifest(source, "its end is missing");
  text.remove_suffix(kAfterChecksum.size());
  if (text.size() < kChecksumDigits) refuse_manifest(source, "it is too short");
  const std::string_view digits = text.substr(text.size() - kChecksumDigits);
  text.remove_suffix(kChecksumDigits);
  if (!text.ends_with(kBeforeChecksum) || xxh3_digits(text) != digits) {
    refuse_manifest(source, "its checksum does not match");
  }
  return text.substr(0, text.size() - kBeforeChecksum.size());
}

/// The JSON reader converts any number, also one beyond the type's range.
template <class Integer>
Integer integer_of(const Json& value, const std::string& source) {
  if (!value.is_number_integer()) refuse_manifest(source, "a number in it is no integer");
  return value.get<Integer>();
}

SnapshotManifest manifest_of(const Json& document, const std::string& source) {
  const auto integer_at = [&](const char* name) {
    return integer_of<std::int64_t>(document.at(name), source);
  };
  SnapshotManifest manifest{.save_id = document.at("save_id"),
                            .epoch = integer_at("epoch"),
                            .step = integer_at("step"),
                            .world_size = integer_at("world_size")};
  for (const Json& file : document.at("files").get_ref<const Json::array_t&>()) {
    const auto bytes = integer_of<std::uint64_t>(file.at("bytes"), source);
    manifest.files.push_back(
        {.name = file.at("name"), .digest = {.size_bytes = bytes, .xxh3 = file.at("xxh3")}});
  }
  for (const Json& tensor : document.at("tensors").get_ref<const Json::array_t&>()) {
    ManifestTensor read{.name = tensor.at("name"),
                        .file = integer_of<std::size_t>(tensor.at("file"), source),
                        .dtype = tensor.at("dtype"),
                        .shape = {}};
    for (const Json& size : tensor.at("shape").get_ref<const Json::array_t&>()) {
      read.shape.push_back(integer_of<std::int64_t>(size, source));
    }
    manifest.tensors.push_back(std::move(read));
  }
  return manifest;
}

}  // namespace

std::string manifest_text(const SnapshotManifest& manifest) {
  Json document;
  document["format"] = kManifestFormat;
  document["lockstep"] = LOCKSTEP_VERSION;
  document["save_id"] = manifest.save_id;
  document["epoch"] = manifest.epoch;
  document["step"] = manifest.step;
  document["world_size"] = manifest.world_size;
  document["files"] = Json::array();
  for (const ManifestFile& file : manifest.files) {
    document["files"].push_back(
        {{"name", file.name}, {"bytes", file.digest.size_bytes}, {"xxh3", file.digest.xxh3}});
  }
  document["tensors"] = Json::array();
  for (const ManifestTensor& tensor : manifest.tensors) {
    document["tensors"].push_back({{"name", tensor.name},
                                   {"file", tensor.file},
                                   {"dtype", tensor.dtype},
                                   {"shape", tensor.shape}});
  }
  // A name that is no UTF-8 is shown so; the reader compares with what the files hold alike.
  std::string text = document.dump(1, ' ', false, Json::error_handler_t::replace);
  text.resize(text.size() - 2);  // "\n}", which follows the checksum
  text += kBeforeChecksum;
  return text + xxh3_digits(text) + std::string(kAfterChecksum);
}

SnapshotManifest parse_manifest(std::string_view text, const std::string& source) {
  const std::string whole = concat(checked_part(text, source), "\n}");
  try {
    const Json document = Json::parse(whole);
    const auto format = integer_of<std::int64_t>(document.at("format"), source);
    if (format != kManifestFormat) {
      throw UsageError(concat(source, ": it has format ", format, ", this Lockstep (",
                              LOCKSTEP_VERSION, ") reads format ", kManifestFormat,
                              "; use the Lockstep that wrote it"));
    }
    SnapshotManifest manifest = manifest_of(document, source);
    std::set<std::string> names;
    for (const ManifestFile& file : manifest.files) {
      if (!is_file_name(file.name) || !names.insert(file.name).second) {
        refuse_manifest(source, concat("'", file.name, "' is no file of a snapshot"));
      }
    }
    for (const ManifestTensor& tensor : manifest.tensors) {
      if (tensor.file >= manifest.files.size()) {
        refuse_manifest(source, concat("'", tensor.name, "' is in no file"));
      }
    }
    if (manifest.files.empty()) refuse_manifest(source, "it names no file");
    return manifest;
  } catch (const Json::exception& error) {
    refuse_manifest(source, error.what());
  }
}

SnapshotManifest read_manifest(const std::filesystem::path& path) {
  const ReadableFile file(path);
  const std::string source = concat("read ", path.string());
  if (file.size_bytes() > kMaxManifestBytes) refuse_manifest(source, "it is too large");
  return parse_manifest(file.text(), source);
}

}  // namespace lockstep::inline internal
