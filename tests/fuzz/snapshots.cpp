// Files that somebody may give to a program to read: pickles, zip archives, safetensors headers and
// indexes, manifests and the metadata of torch.distributed.checkpoint. Run by tests/fuzz/run.sh,
// with little memory: what reads them must not take more than they are worth.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <ATen/ops/empty.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/readable_file.h"
#include "lockstep/snapshot/checkpoint/distributed_metadata.h"
#include "lockstep/snapshot/checkpoint/safetensors_index.h"
#include "lockstep/snapshot/internal/checksum.h"
#include "lockstep/snapshot/internal/safetensors_header.h"
#include "lockstep/snapshot/pickle/unpickler.h"
#include "lockstep/snapshot/pickle/zip_reader.h"
#include "lockstep/snapshot/sharded/snapshot_manifest.h"

namespace lockstep {
namespace {

void read_pickle(std::string_view text) {
  // As an archive: no storage has more bytes than the file.
  const auto read_storage = [&](const std::string&, std::uint64_t bytes) {
    if (bytes > text.size()) throw CorruptFile("a storage that is not in the file");
    return at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
  };
  unpickle(text, read_storage, "input");
}

void read_archive(std::string_view text) {
  static const int file = ::memfd_create("input", MFD_CLOEXEC);
  if (::ftruncate(file, 0) != 0 ||
      ::pwrite(file, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    std::abort();
  }
  const ReadableFile opened(concat("/proc/self/fd/", file));
  const ZipReader archive(opened);
  for (const auto& [name, record] : archive.records()) {
    std::string content(record.size_bytes, '\0');
    archive.read(record, content.data());
    if (name == "data.pkl") read_pickle(content);
  }
}

void read_header(std::string_view text) {
  // Of no data, and of so much as the first tensors may have.
  for (const std::uint64_t data_bytes : {0, 8}) {
    const SafetensorsHeader header = parse_safetensors_header(text, data_bytes, "input");
    for (const SafetensorsEntry& entry : header.tensors) at::empty(entry.shape, entry.dtype);
  }
}

void read_sealed_manifest(std::string_view text) {
  const std::string begin = concat(text, ",\n \"checksum\": \"xxh3:");
  const SnapshotManifest manifest =
      parse_manifest(concat(begin, xxh3_digits(begin), "\"\n}\n"), "input");
  // What can be read can be written and read again.
  if (parse_manifest(manifest_text(manifest), "input").tensors != manifest.tensors) std::abort();
}

void read_index(std::string_view text) {
  const SafetensorsIndex index = parse_safetensors_index(text, "input");
  if (parse_safetensors_index(safetensors_index_text(index), "input").files != index.files) {
    std::abort();
  }
}

void read_metadata(std::string_view text) {
  const DistributedMetadata metadata = parse_distributed_metadata(text, "input");
  if (parse_distributed_metadata(distributed_metadata_text(metadata), "input") != metadata) {
    std::abort();
  }
}

void read(std::uint8_t kind, std::string_view text) {
  switch (kind % 6) {
    case 0:
      return read_pickle(text);
    case 1:
      return read_archive(text);
    case 2:
      return read_header(text);
    case 3:
      return read_sealed_manifest(text);
    case 4:
      return read_index(text);
    default:
      return read_metadata(text);
  }
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    lockstep::read(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const lockstep::Error&) {
    // Refused: the only other thing that may become of it.
  }
  return 0;
}
