#include "lockstep/snapshot/pickle/zip_reader.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include <zlib.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/pickle/not_a_checkpoint.h"

namespace lockstep::inline internal {
namespace {

// The structures of PKWARE's APPNOTE.TXT 6.3: signature, length without variable parts.
constexpr std::uint32_t kLocalHeader = 0x04034b50;
constexpr std::uint64_t kLocalHeaderBytes = 30;
constexpr std::uint32_t kDirectoryEntry = 0x02014b50;
constexpr std::size_t kDirectoryEntryBytes = 46;
constexpr std::uint32_t kEndOfDirectory = 0x06054b50;
constexpr std::size_t kEndOfDirectoryBytes = 22;
constexpr std::uint32_t kZip64Locator = 0x07064b50;
constexpr std::uint64_t kZip64LocatorBytes = 20;
constexpr std::uint32_t kZip64EndOfDirectory = 0x06064b50;
constexpr std::uint64_t kZip64EndOfDirectoryBytes = 56;
constexpr std::uint16_t kZip64Extra = 0x0001;
/// A 32-bit field with this value has its true one in the zip64 extra field.
constexpr std::uint32_t kSeeZip64 = 0xFFFFFFFF;
constexpr std::uint64_t kMaxCommentBytes = 0xFFFF;
/// The record that ends the directory and the checksum of Lockstep, with room to spare.
constexpr std::uint64_t kUsualTailBytes = 256;
/// A directory entry takes about 100 bytes, and a model of a trillion parameters has some 10^5.
constexpr std::uint64_t kMaxDirectoryBytes = 256u << 20;
/// In the names of what torch.jit.save writes.
constexpr std::string_view kCodeOfModule = "/code/__torch__";
/// Through which records are verified.
constexpr std::uint64_t kVerifyBufferBytes = 1u << 20;

template <class Integer>
Integer load(const std::vector<unsigned char>& bytes, std::size_t offset) {
  Integer value{};
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

/// Where the record that ends the directory begins in the end of a file.
std::optional<std::size_t> end_of_directory(const std::vector<unsigned char>& tail) {
  for (std::size_t at = tail.size() - kEndOfDirectoryBytes + 1; at-- > 0;) {
    if (load<std::uint32_t>(tail, at) == kEndOfDirectory &&
        at + kEndOfDirectoryBytes + load<std::uint16_t>(tail, at + 20) == tail.size()) {
      return at;
    }
  }
  return std::nullopt;
}

/// Replaces sizes and offset that did not fit 32 bits, in the order that the format gives them.
bool apply_zip64(const std::vector<unsigned char>& directory, std::size_t begin, std::size_t end,
                 std::initializer_list<std::uint64_t*> fields) {
  while (begin + 4 <= end) {
    const auto id = load<std::uint16_t>(directory, begin);
    const std::size_t next = begin + 4 + load<std::uint16_t>(directory, begin + 2);
    if (next > end) return false;
    begin += 4;
    if (id == kZip64Extra) {
      for (std::uint64_t* field : fields) {
        if (*field != kSeeZip64) continue;
        if (begin + 8 > next) return false;
        *field = load<std::uint64_t>(directory, begin);
        begin += 8;
      }
      return true;
    }
    begin = next;
  }
  return std::none_of(fields.begin(), fields.end(),
                      [](const std::uint64_t* field) { return *field == kSeeZip64; });
}

}  // namespace

ZipReader::ZipReader(const ReadableFile& file, const ZipReaderOptions& options)
    : file_(file), options_(options) {
  read_directory(find_directory());
  check_overlaps();
}

const ZipRecord& ZipReader::record(const std::string& name) const {
  const auto found = records_.find(name);
  if (found == records_.end()) corrupt(concat("it has no record '", name, "'"));
  return found->second;
}

void ZipReader::read(const ZipRecord& record, void* target) const {
  file_.read(record.offset_bytes, target, record.size_bytes);
  if (options_.check_crc && record.crc32 != 0 &&
      ::crc32_z(0, static_cast<const Bytef*>(target), record.size_bytes) != record.crc32) {
    corrupt(concat("record '", record.name, "' does not have the CRC that the archive states"));
  }
}

bool ZipReader::has_crcs() const {
  return std::any_of(records_.begin(), records_.end(),
                     [](const auto& record) { return record.second.crc32 != 0; });
}

bool ZipReader::is_intact(const ZipRecord& record) const {
  std::vector<Bytef> buffer(std::min<std::uint64_t>(record.size_bytes, kVerifyBufferBytes));
  uLong crc32 = 0;
  for (std::uint64_t done = 0; done < record.size_bytes; done += buffer.size()) {
    buffer.resize(std::min<std::uint64_t>(buffer.size(), record.size_bytes - done));
    file_.read(record.offset_bytes + done, buffer.data(), buffer.size());
    crc32 = ::crc32_z(crc32, buffer.data(), buffer.size());
  }
  return record.crc32 == 0 || crc32 == record.crc32;
}

ZipReader::Directory ZipReader::find_directory() const {
  const std::uint64_t size = file_.size_bytes();
  if (size < kEndOfDirectoryBytes) corrupt("it is too short for a zip archive");
  std::vector<unsigned char> tail;
  std::optional<std::size_t> end;
  for (const std::uint64_t most : {kUsualTailBytes, kEndOfDirectoryBytes + kMaxCommentBytes}) {
    tail.resize(std::min(size, most));
    file_.read(size - tail.size(), tail.data(), tail.size());
    end = end_of_directory(tail);
    if (end) break;
  }
  if (!end) corrupt("it has no zip directory at its end");
  const std::size_t at = *end;
  Directory directory{.offset_bytes = load<std::uint32_t>(tail, at + 16),
                      .size_bytes = load<std::uint32_t>(tail, at + 12),
                      .entries = load<std::uint16_t>(tail, at + 10)};

  const std::uint64_t end_offset = size - tail.size() + at;
  std::vector<unsigned char> bytes(kZip64EndOfDirectoryBytes);
  if (end_offset >= kZip64LocatorBytes) {
    file_.read(end_offset - kZip64LocatorBytes, bytes.data(), kZip64LocatorBytes);
  }
  if (load<std::uint32_t>(bytes, 0) == kZip64Locator) {
    const auto offset = load<std::uint64_t>(bytes, 8);
    if (offset > size || size - offset < kZip64EndOfDirectoryBytes) {
      corrupt("its zip64 directory lies outside of it");
    }
    file_.read(offset, bytes.data(), kZip64EndOfDirectoryBytes);
    if (load<std::uint32_t>(bytes, 0) != kZip64EndOfDirectory) corrupt("its zip64 part is damaged");
    directory = {.offset_bytes = load<std::uint64_t>(bytes, 48),
                 .size_bytes = load<std::uint64_t>(bytes, 40),
                 .entries = load<std::uint64_t>(bytes, 32)};
  }
  if (directory.size_bytes > kMaxDirectoryBytes || directory.offset_bytes > end_offset ||
      directory.size_bytes > end_offset - directory.offset_bytes) {
    corrupt("its zip directory lies outside of it");
  }
  return directory;
}

void ZipReader::read_directory(const Directory& directory) {
  std::vector<unsigned char> bytes(directory.size_bytes);
  file_.read(directory.offset_bytes, bytes.data(), bytes.size());
  std::size_t at = 0;
  std::string root;
  for (std::uint64_t entry = 0; entry < directory.entries; ++entry) {
    ZipRecord record = read_entry(bytes, at);
    if (entry == 0) root = record.name.substr(0, record.name.find('/') + 1);
    if (root.empty() || !record.name.starts_with(root)) {
      corrupt("its records have no common directory");
    }
    record.name.erase(0, root.size());
    if (record.size_bytes > directory.offset_bytes ||
        record.offset_bytes > directory.offset_bytes - record.size_bytes) {
      corrupt(concat("record '", record.name, "' lies outside of it"));
    }
    const auto [position, is_new] = records_.try_emplace(record.name, record);
    if (!is_new) corrupt(concat("it has two records '", record.name, "'"));
  }
}

ZipRecord ZipReader::read_entry(const std::vector<unsigned char>& directory,
                                std::size_t& at) const {
  if (directory.size() - at < kDirectoryEntryBytes ||
      load<std::uint32_t>(directory, at) != kDirectoryEntry) {
    corrupt("its zip directory is damaged");
  }
  const auto flags = load<std::uint16_t>(directory, at + 8);
  const auto method = load<std::uint16_t>(directory, at + 10);
  std::uint64_t stored_bytes = load<std::uint32_t>(directory, at + 20);
  std::uint64_t size_bytes = load<std::uint32_t>(directory, at + 24);
  std::uint64_t header_offset = load<std::uint32_t>(directory, at + 42);
  const std::size_t name_begin = at + kDirectoryEntryBytes;
  const std::size_t name_end = name_begin + load<std::uint16_t>(directory, at + 28);
  const std::size_t extra_end = name_end + load<std::uint16_t>(directory, at + 30);
  const std::size_t next = extra_end + load<std::uint16_t>(directory, at + 32);
  if (next > directory.size() ||
      !apply_zip64(directory, name_end, extra_end, {&size_bytes, &stored_bytes, &header_offset})) {
    corrupt("its zip directory is damaged");
  }
  std::string name(reinterpret_cast<const char*>(directory.data()) + name_begin,
                   name_end - name_begin);
  constexpr std::uint16_t kEncrypted = 1;
  // Its code is compressed.
  if (method != 0 && name.find(kCodeOfModule) != std::string::npos) {
    throw NotACheckpoint(concat("read ", file_.path().string(),
                                ": it is a TorchScript module; save the module's state_dict"));
  }
  if (method != 0 || stored_bytes != size_bytes || (flags & kEncrypted) != 0) {
    corrupt(concat("record '", name, "' is compressed or encrypted, which PyTorch's are not"));
  }
  const std::uint64_t offset_bytes = data_offset(header_offset, name);
  const auto crc = load<std::uint32_t>(directory, at + 16);
  at = next;
  return {std::move(name), offset_bytes, size_bytes, crc};
}

std::uint64_t ZipReader::data_offset(std::uint64_t header_offset, const std::string& name) const {
  std::vector<unsigned char> header(kLocalHeaderBytes + name.size());
  if (header_offset > file_.size_bytes() || file_.size_bytes() - header_offset < header.size()) {
    corrupt(concat("record '", name, "' lies outside of it"));
  }
  file_.read(header_offset, header.data(), header.size());
  if (load<std::uint32_t>(header, 0) != kLocalHeader ||
      load<std::uint16_t>(header, 26) != name.size() ||
      !std::equal(name.begin(), name.end(), header.begin() + kLocalHeaderBytes,
                  [](char a, unsigned char b) { return static_cast<unsigned char>(a) == b; })) {
    corrupt(concat("the header of record '", name, "' is damaged"));
  }
  return header_offset + header.size() + load<std::uint16_t>(header, 28);
}

/// Overlapping records would let a small file fill the memory.
void ZipReader::check_overlaps() const {
  std::vector<const ZipRecord*> order;
  for (const auto& [name, record] : records_) order.push_back(&record);
  std::sort(order.begin(), order.end(), [](const ZipRecord* a, const ZipRecord* b) {
    return a->offset_bytes < b->offset_bytes;
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset_bytes + order[i - 1]->size_bytes > order[i]->offset_bytes) {
      corrupt(concat("records '", order[i - 1]->name, "' and '", order[i]->name, "' overlap"));
    }
  }
}

void ZipReader::corrupt(const std::string& reason) const {
  throw CorruptFile(concat("read ", file_.path(), ": ", reason,
                           "; it is damaged, or not a file of torch.save or Lockstep: use another "
                           "copy or an older snapshot"));
}

}  // namespace lockstep::inline internal
