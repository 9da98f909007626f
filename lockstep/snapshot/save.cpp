#include "lockstep/snapshot/save.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/atomic_file.h"
#include "lockstep/os/files/readable_file.h"
#include "lockstep/snapshot/internal/archive_writer.h"
#include "lockstep/snapshot/internal/checksum.h"
#include "lockstep/snapshot/internal/gathered_state.h"
#include "lockstep/snapshot/internal/saved_file.h"
#include "lockstep/snapshot/pickle/pickled.h"
#include "lockstep/snapshot/pickle/unpickler.h"
#include "lockstep/snapshot/pickle/zip_reader.h"

namespace lockstep {
namespace {

constexpr const char* kNoteRecord = ".lockstep/note";
constexpr std::uint64_t kMaxNoteBytes = 64u << 10;
/// 20 bytes an instruction sequence and a name: a million tensors stay below it.
constexpr std::uint64_t kMaxPickleBytes = 256u << 20;
/// What torch.save wrote before PyTorch 1.6, and writes with _use_new_zipfile_serialization=False,
/// begins with: a pickle of this number.
constexpr std::string_view kOldFormatBegin = "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.";

std::string text_of_record(const ZipReader& archive, const ZipRecord& record) {
  std::string bytes(record.size_bytes, '\0');
  archive.read(record, bytes.data());
  return bytes;
}

std::string read_pickle(const ZipReader& archive, const std::string& file) {
  const ZipRecord& record = archive.record(kPickleRecord);
  if (record.size_bytes > kMaxPickleBytes) {
    throw CorruptFile(concat("read ", file, ": its pickle of ", record.size_bytes,
                             " bytes is larger than any state dict's"));
  }
  return text_of_record(archive, record);
}

void check_byte_order(const ZipReader& archive, const std::string& file) {
  if (!archive.has_record(kByteOrderRecord)) return;
  const ZipRecord& record = archive.record(kByteOrderRecord);
  std::string order(std::min<std::uint64_t>(record.size_bytes, 16), '\0');
  if (order.size() == record.size_bytes) archive.read(record, order.data());
  if (order != "little") {
    throw UsageError(
        concat("read ", file, ": its numbers are big-endian; save it on a little-endian machine"));
  }
}

void refuse_old_format(const ReadableFile& file) {
  std::string begin(kOldFormatBegin.size(), '\0');
  if (file.size_bytes() < begin.size()) return;
  file.read(0, begin.data(), begin.size());
  if (begin != kOldFormatBegin) return;
  const std::string name = file.path().string();
  throw UsageError(concat("read ", name,
                          ": it has the format that torch.save had before PyTorch 1.6, and this "
                          "reads zip archives; save it again with Python: torch.save(torch.load('",
                          name, "', weights_only=True), '", name, "')"));
}

// `take` makes the storage of each record, as a byte tensor.
c10::IValue read_tree(const ZipReader& archive, const std::string& file,
                      const std::function<at::Tensor(const ZipRecord& record)>& take) {
  check_byte_order(archive, file);
  const auto read_storage = [&](const std::string& key, std::uint64_t bytes) {
    const ZipRecord& record = archive.record(concat(kStoragePrefix, key));
    if (record.size_bytes != bytes) {
      throw CorruptFile(concat("read ", file, ": storage '", key, "' has ", record.size_bytes,
                               " bytes instead of ", bytes));
    }
    return take(record);
  };
  const std::string pickle_bytes = read_pickle(archive, file);
  return unpickle(pickle_bytes, read_storage, file);
}

at::Tensor empty_storage(const ZipRecord& record) {
  return at::empty({static_cast<std::int64_t>(record.size_bytes)}, at::kByte);
}

c10::IValue read_archive(const ReadableFile& file, const ZipReaderOptions& options) {
  const ZipReader archive(file, options);
  return read_tree(archive, file.path().string(), [&](const ZipRecord& record) {
    at::Tensor storage = empty_storage(record);
    archive.read(record, storage.mutable_data_ptr());
    return storage;
  });
}

}  // namespace

inline namespace internal {

FileDigest save_file(const std::filesystem::path& path, const c10::IValue& value,
                     const SaveOptions& options, const GatherWhole& gather) {
  const Pickled pickled = pickle(writable_value(value));
  AtomicFile file(path);
  ChecksumWriter output(file);
  {
    ArchiveWriter archive([&](const void* data, std::size_t bytes) { output.write(data, bytes); });
    archive.add(kPickleRecord, pickled.pickle.data(), pickled.pickle.size());
    const std::string byte_order = "little";
    archive.add(kByteOrderRecord, byte_order.data(), byte_order.size());
    if (!options.note.empty()) archive.add(kNoteRecord, options.note.data(), options.note.size());
    std::map<const c10::StorageImpl*, std::string> absent;
    for (std::size_t i = 0; i < pickled.storages.size(); ++i) {
      const std::string name = concat(kStoragePrefix, i);
      const c10::Storage& storage = pickled.storages[i].storage();
      if (is_absent(pickled.storages[i])) {
        absent.emplace(storage.unsafeGetStorageImpl(), name);
      } else {
        archive.add(name, storage.data(), storage.nbytes());
      }
    }
    // Of a disk that is full the archive tells at its end: the other ranks gather to theirs.
    if (gather) {
      gather([&](const at::Tensor& stands_for, const std::function<at::Tensor()>& whole) {
        const auto found = absent.find(stands_for.storage().unsafeGetStorageImpl());
        if (found == absent.end()) return;
        const at::Tensor tensor = whole();
        LOCKSTEP_ASSERT(tensor.storage().nbytes() == stands_for.storage().nbytes());
        archive.add(found->second, tensor.storage().data(), tensor.storage().nbytes());
        absent.erase(found);
      });
    }
    LOCKSTEP_ASSERT(absent.empty());
    archive.finish();
  }
  FileDigest digest = output.finish();
  file.commit();
  return digest;
}

}  // namespace internal

void save(const std::filesystem::path& path, const c10::IValue& value) {
  save_file(path, value);
}

void save(const std::filesystem::path& path, const TensorDict& tensors,
          const SaveOptions& options) {
  save_file(path, tensor_dict_value(tensors), options);
}

std::string read_note(const std::filesystem::path& path) {
  const ReadableFile file(path);
  const ZipReader archive(file);
  if (!archive.has_record(kNoteRecord)) return {};
  const ZipRecord& record = archive.record(kNoteRecord);
  if (record.size_bytes > kMaxNoteBytes) {
    throw CorruptFile(concat("read ", path.string(), ": its note has ", record.size_bytes,
                             " bytes, which no note has"));
  }
  return text_of_record(archive, record);
}

c10::IValue load(const std::filesystem::path& path, const LoadOptions& options) {
  const ReadableFile file(path);
  refuse_old_format(file);
  const bool verified = verify_checksum(file);
  if (!verified && options.checksum_required) {
    throw UsageError(concat("read ", path.string(),
                            ": no snapshot of Lockstep but a file of another "
                            "program; its weights can be read with read_state_dict"));
  }
  return read_archive(file, {.check_crc = !verified});
}

inline namespace internal {

c10::IValue load_verified(const ReadableFile& file) {
  return read_archive(file, {.check_crc = false});
}

at::Tensor read_absent(const ReadableFile& file, const ZipRecord& record,
                       const at::Tensor& absent) {
  const at::Tensor bytes = empty_storage(record);
  file.read(record.offset_bytes, bytes.mutable_data_ptr(), record.size_bytes);
  return at::empty({0}, absent.options())
      .set_(bytes.storage(), absent.storage_offset(), absent.sizes(), absent.strides());
}

Outline load_outline(const ReadableFile& file) {
  refuse_old_format(file);
  const ZipReader archive(file, {.check_crc = false});
  Outline outline{
      .tree = {}, .records = {}, .pickle_bytes = archive.record(kPickleRecord).size_bytes};
  outline.tree = read_tree(archive, file.path().string(), [&](const ZipRecord& record) {
    const auto bytes = static_cast<std::int64_t>(record.size_bytes);
    at::Tensor storage = absent_tensor({bytes}, {1}, at::kByte);
    outline.records[storage.storage().unsafeGetStorageImpl()] = record;
    return storage;
  });
  return outline;
}

}  // namespace internal

}  // namespace lockstep
