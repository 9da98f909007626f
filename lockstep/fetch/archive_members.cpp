#include "lockstep/fetch/archive_members.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <unistd.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/os/unique_fd.h"

namespace lockstep {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 16;

template <class... Parts>
[[noreturn]] void refuse_archive(const std::filesystem::path& archive, const Parts&... parts) {
  throw CorruptFile(concat("archive ", archive.filename().string(), ": ", parts...));
}

class ArchiveReader {
 public:
  explicit ArchiveReader(const std::filesystem::path& path)
      : path_(path), handle_(archive_read_new(), archive_read_free) {
    if (handle_ == nullptr) throw Error("unpacking: libarchive cannot start");
    archive_read_support_format_zip(handle_.get());
    archive_read_support_format_tar(handle_.get());
    archive_read_support_filter_gzip(handle_.get());
    check(archive_read_open_filename(handle_.get(), path.c_str(), kReadBytes));
  }

  /// False at the end.
  bool next() {
    const int status = archive_read_next_header(handle_.get(), &entry_);
    if (status == ARCHIVE_EOF) return false;
    check(status);
    return true;
  }

  std::string member_path() const {
    // The other is null for names that the locale cannot show.
    const char* path = archive_entry_pathname_utf8(entry_);
    if (path == nullptr) path = archive_entry_pathname(entry_);
    return path == nullptr ? "" : path;
  }

  bool is_regular_file() const {
    return archive_entry_filetype(entry_) == AE_IFREG && archive_entry_hardlink(entry_) == nullptr;
  }

  /// The next bytes of the member, in `piece`; 0 at its end.
  std::size_t read(std::vector<char>& piece) {
    const la_ssize_t bytes = archive_read_data(handle_.get(), piece.data(), piece.size());
    if (bytes < 0) check(static_cast<int>(bytes));
    return static_cast<std::size_t>(std::max<la_ssize_t>(bytes, 0));
  }

 private:
  // ARCHIVE_WARN is about attributes that are of no interest here, such as a name's encoding.
  void check(int status) const {
    if (status == ARCHIVE_OK || status == ARCHIVE_WARN) return;
    const char* const text = archive_error_string(handle_.get());
    refuse_archive(path_, text == nullptr ? "it cannot be read" : text,
                   "; it is damaged or of another kind");
  }

  const std::filesystem::path& path_;
  std::unique_ptr<archive, decltype(&archive_read_free)> handle_;
  archive_entry* entry_ = nullptr;
};

void write_to(const UniqueFd& fd, const std::filesystem::path& path, const char* data,
              std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = ::write(fd.get(), data, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      throw SystemError(concat("write ", bytes, " bytes to ", path.string()), errno,
                        "free some space or choose another folder by --to");
    }
    data += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

}  // namespace

bool leaves_folder(const std::string& member_path) {
  const std::filesystem::path path(member_path);
  return path.is_absolute() || std::find(path.begin(), path.end(), "..") != path.end();
}

void extract_members(const std::filesystem::path& archive,
                     const std::vector<ArchiveMember>& members,
                     const std::filesystem::path& folder) {
  ArchiveReader reader(archive);
  std::set<std::string> found;
  std::vector<char> piece(kReadBytes);
  while (reader.next()) {
    const std::string member_path = reader.member_path();
    if (leaves_folder(member_path)) {
      refuse_archive(archive, "its member '", member_path,
                     "' would be unpacked outside of the folder; do not use this archive");
    }
    const auto wanted =
        std::find_if(members.begin(), members.end(),
                     [&](const ArchiveMember& member) { return member.path == member_path; });
    if (wanted == members.end()) continue;
    if (!reader.is_regular_file()) refuse_archive(archive, member_path, " is no regular file");
    if (!found.insert(member_path).second) refuse_archive(archive, member_path, " is there twice");
    const std::filesystem::path target = folder / wanted->file_name;
    const UniqueFd fd(
        ::open(target.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!fd.valid()) throw SystemError("create " + target.string(), errno);
    while (const std::size_t bytes = reader.read(piece)) {
      write_to(fd, target, piece.data(), bytes);
    }
  }
  for (const ArchiveMember& member : members) {
    if (!found.contains(member.path))
      refuse_archive(archive, "there is no ", member.path, " in it");
  }
}

}  // namespace lockstep
