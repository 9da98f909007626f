#include "lockstep/fetch/get_data_set.h"

#include <cerrno>
#include <system_error>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/fetch/archive_members.h"
#include "lockstep/fetch/data_folder.h"
#include "lockstep/fetch/digest.h"
#include "lockstep/fetch/download.h"
#include "lockstep/fetch/make_data_set.h"
#include "lockstep/fetch/package_index.h"
#include "lockstep/fetch/text_file.h"
#include "lockstep/fetch/transfer_progress.h"
#include "lockstep/fetch/url.h"
#include "lockstep/os/staged_directory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Kind = DataFolderState::Kind;

/// The largest page of PyPI has some 10 MB.
constexpr std::uint64_t kMostPageBytes = std::uint64_t{1} << 27;

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directory(folder, error);
  if (error) throw SystemError("make the folder " + folder.string(), error.value());
}

void download_shown(const std::string& url, const std::string& name, const fs::path& target,
                    DownloadOptions download_options, const GetDataSetOptions& options) {
  TransferProgress progress(name);
  download_options.stall_timeout = options.stall_timeout;
  download_options.on_progress = [&](std::uint64_t done_bytes, std::uint64_t total_bytes) {
    options.check_stop();
    progress.update(done_bytes, total_bytes);
  };
  download(url, target, download_options);
}

std::string url_of(const RecipeSource& source, const fs::path& work,
                   const GetDataSetOptions& options) {
  if (!source.url.empty()) return source.url;
  const std::string page_url = package_page_url(options.index_url, source.package);
  const fs::path page = work / "index_page";
  download_shown(page_url, "index of " + source.package, page,
                 {.accept = kPackagePageTypes, .most_bytes = kMostPageBytes}, options);
  return package_file_url(read_text_file(page), page_url, source.file_name);
}

void check_source(const RecipeSource& source, const fs::path& file, const std::string& url) {
  std::error_code error;
  const std::uint64_t size_bytes = fs::file_size(file, error);
  if (error) throw SystemError("read " + file.string(), error.value());
  const auto compare = [&](const char* what, const auto& expected, const auto& actual) {
    if (expected == actual) return;
    throw CorruptFile(concat(shown_url(url), ": its ", what, " is ", actual,
                             ", but the recipe says ", expected,
                             "; it is damaged or another file, try another mirror"));
  };
  compare("size in bytes", source.size_bytes, size_bytes);
  const auto compare_digest = [&](DigestKind kind, const std::string& expected) {
    if (!expected.empty()) compare(digest_name(kind), expected, digest_of_file(kind, file));
  };
  compare_digest(DigestKind::kSha256, source.sha256);
  compare_digest(DigestKind::kMd5, source.md5);
}

// Leaves the files that are wanted in `unpacked`.
void fetch_source(const RecipeSource& source, const fs::path& work, const fs::path& unpacked,
                  const GetDataSetOptions& options) {
  const std::string url = url_of(source, work, options);
  const fs::path file = work / source.file_name;
  download_shown(url, source.file_name, file, {.most_bytes = source.size_bytes}, options);
  check_source(source, file, url);
  options.check_stop();
  std::error_code error;
  if (source.members.empty()) {
    fs::rename(file, unpacked / source.file_name, error);
    if (error) throw SystemError("move " + file.string(), error.value());
    return;
  }
  std::vector<ArchiveMember> members;
  for (const std::string& member : source.members) {
    members.push_back({member, fs::path(member).filename().string()});
  }
  extract_members(file, members, unpacked);
  fs::remove(file, error);  // Else it goes with the work folder.
}

std::uint64_t size_of_files(const fs::path& folder) {
  std::uint64_t size_bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) size_bytes += entry.file_size();
  return size_bytes;
}

[[noreturn]] void refuse_folder(const fs::path& folder, const DataFolderState& state) {
  throw UsageError(concat(folder.string(), " is in the way: ", state.reason,
                          state.kind == Kind::kOutdated
                              ? "; --force makes it anew"
                              : "; name another folder by --to, or move this one away"));
}

}  // namespace

GetDataSetResult get_data_set(const Recipe& recipe, const GetDataSetOptions& options) {
  StagedDirectory::settle(options.folder);
  const DataFolderState state = inspect_data_folder(options.folder, recipe);
  if (state.kind == Kind::kWhole && !options.force) return {.was_there = true};
  const bool may_replace = options.force && state.kind != Kind::kForeign;
  if (state.kind != Kind::kFree && !may_replace) refuse_folder(options.folder, state);

  StagedDirectory staged(options.folder);
  const fs::path data = staged.path();
  const fs::path work = data / ".work";
  const fs::path unpacked = work / ".unpacked";
  make_folder(work);
  make_folder(unpacked);
  for (const RecipeSource& source : recipe.sources) {
    options.check_stop();
    fetch_source(source, work, unpacked, options);
  }
  options.check_stop();
  GetDataSetResult result{.content = make_data_set(recipe, unpacked, data)};
  std::error_code error;
  fs::remove_all(work, error);
  if (error) throw SystemError("remove " + work.string(), error.value());
  seal_data_folder(data, recipe);
  result.size_bytes = size_of_files(data);
  options.check_stop();
  const auto existing = state.kind == Kind::kFree ? StagedDirectory::Existing::kKeep
                                                  : StagedDirectory::Existing::kReplace;
  if (!staged.commit(existing)) {
    // Somebody else made it meanwhile.
    const DataFolderState now = inspect_data_folder(options.folder, recipe);
    if (now.kind != Kind::kWhole) refuse_folder(options.folder, now);
    return {.was_there = true};
  }
  return result;
}

}  // namespace lockstep
