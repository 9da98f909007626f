#include "lockstep/fetch/download.h"

#include <array>
#include <cerrno>
#include <exception>
#include <memory>
#include <system_error>
#include <utility>

#include <curl/curl.h>
#include <fcntl.h>
#include <unistd.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/fetch/download_error.h"
#include "lockstep/fetch/url.h"
#include "lockstep/os/unique_fd.h"

namespace lockstep {
namespace {

/// Less than this, on average over the stall timeout, is as good as nothing.
constexpr long kStalledBytesASecond = 1024;
constexpr long kMostRedirects = 10;
constexpr long kFirstServerError = 500;

struct CurlLibrary {
  CurlLibrary() { curl_global_init(CURL_GLOBAL_DEFAULT); }
  ~CurlLibrary() { curl_global_cleanup(); }
};

// What the callbacks of one download share.
struct Transfer {
  std::string url;
  const DownloadOptions& options;
  std::filesystem::path path;
  UniqueFd fd{};
  std::uint64_t resumed_bytes = 0;  ///< there before this attempt
  std::uint64_t written_bytes = 0;
  int write_errno = 0;
  bool too_long = false;
  std::exception_ptr stopped{};
};

std::size_t on_bytes(char* data, std::size_t, std::size_t bytes, void* context) {
  auto& transfer = *static_cast<Transfer*>(context);
  if (bytes > transfer.options.most_bytes - transfer.written_bytes) {
    transfer.too_long = true;
    return 0;
  }
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t written = ::write(transfer.fd.get(), data + done, bytes - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      transfer.write_errno = errno;
      return 0;
    }
    done += static_cast<std::size_t>(written);
    transfer.written_bytes += static_cast<std::uint64_t>(written);
  }
  return bytes;
}

int on_progress(void* context, curl_off_t total, curl_off_t, curl_off_t, curl_off_t) {
  auto& transfer = *static_cast<Transfer*>(context);
  if (!transfer.options.on_progress) return 0;
  try {
    const std::uint64_t whole =
        total > 0 ? static_cast<std::uint64_t>(total) + transfer.resumed_bytes : 0;
    transfer.options.on_progress(transfer.written_bytes, whole);
    return 0;
  } catch (...) {  // libcurl is C: nothing may pass through it.
    transfer.stopped = std::current_exception();
    return 1;
  }
}

struct Attempt {
  CURLcode code = CURLE_OK;
  long status = 0;
  std::string detail;
};

Attempt attempt_download(Transfer& transfer) {
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> handle(curl_easy_init(),
                                                                   curl_easy_cleanup);
  if (handle == nullptr) throw Error("download: libcurl cannot start (curl_easy_init failed)");
  CURL* const curl = handle.get();
  const DownloadOptions& options = transfer.options;
  std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(nullptr, curl_slist_free_all);
  if (!options.accept.empty()) {
    headers.reset(curl_slist_append(nullptr, ("Accept: " + options.accept).c_str()));
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  }
  std::array<char, CURL_ERROR_SIZE> detail{};
  const long stall_s = static_cast<long>(options.stall_timeout.count());
  curl_easy_setopt(curl, CURLOPT_URL, transfer.url.c_str());
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, detail.data());
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "lockstep");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, kMostRedirects);
  curl_easy_setopt(curl, CURLOPT_NETRC, static_cast<long>(CURL_NETRC_OPTIONAL));
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, stall_s);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, kStalledBytesASecond);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, stall_s);
  curl_easy_setopt(curl, CURLOPT_RESUME_FROM_LARGE,
                   static_cast<curl_off_t>(transfer.resumed_bytes));
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_bytes);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
  Attempt attempt;
  attempt.code = curl_easy_perform(curl);
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &attempt.status);
  attempt.detail = detail[0] != '\0' ? detail.data() : curl_easy_strerror(attempt.code);
  return attempt;
}

bool may_pass(const Attempt& attempt) {
  switch (attempt.code) {
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_RANGE_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return true;
    case CURLE_HTTP_RETURNED_ERROR:
      return attempt.status >= kFirstServerError;
    default:
      return false;
  }
}

[[noreturn]] void fail(const Transfer& transfer, const Attempt& attempt) {
  const std::string what = concat("download of ", shown_url(transfer.url));
  if (transfer.stopped != nullptr) std::rethrow_exception(transfer.stopped);
  if (transfer.write_errno != 0) {
    throw SystemError(
        concat(what, ": write at offset ", transfer.written_bytes, " of ", transfer.path.string()),
        transfer.write_errno, "free some space or choose another folder by --to");
  }
  if (transfer.too_long) {
    throw DownloadError(concat(what, ": there is more than the ", transfer.options.most_bytes,
                               " bytes that it should have; is it another file?"));
  }
  if (attempt.code == CURLE_OPERATION_TIMEDOUT) {
    throw TimeoutError(concat(
        what, ": next to nothing arrived for ", transfer.options.stall_timeout.count(), " s (",
        transfer.written_bytes, " bytes are there); try again, or wait longer by --timeout"));
  }
  if (attempt.code == CURLE_HTTP_RETURNED_ERROR) {
    throw DownloadError(concat(what, ": the server answered with status ", attempt.status,
                               "; check the URL, or use another mirror"));
  }
  throw DownloadError(concat(what, " ended after ", transfer.written_bytes,
                             " bytes: ", attempt.detail,
                             "; check the network and its proxy (https_proxy), or use another "
                             "mirror"));
}

void forget_what_came(Transfer& transfer) {
  if (::ftruncate(transfer.fd.get(), 0) != 0 || ::lseek(transfer.fd.get(), 0, SEEK_SET) != 0) {
    throw SystemError(concat("empty ", transfer.path.string()), errno);
  }
  transfer.written_bytes = 0;
}

}  // namespace

void download(const std::string& url, const std::filesystem::path& target,
              const DownloadOptions& options) {
  static const CurlLibrary library;
  url_scheme(url);
  Transfer transfer{.url = url, .options = options, .path = target.string() + ".part"};
  transfer.fd.reset(::open(transfer.path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!transfer.fd.valid()) throw SystemError("create " + transfer.path.string(), errno);
  for (int attempts = 1;; ++attempts) {
    transfer.resumed_bytes = transfer.written_bytes;
    const Attempt attempt = attempt_download(transfer);
    if (attempt.code == CURLE_OK) break;
    const bool ours = transfer.stopped != nullptr || transfer.write_errno != 0 || transfer.too_long;
    if (ours || !may_pass(attempt) || attempts == kDownloadAttempts) fail(transfer, attempt);
    if (attempt.code == CURLE_RANGE_ERROR) forget_what_came(transfer);
  }
  std::error_code error;
  std::filesystem::rename(transfer.path, target, error);
  if (error) throw SystemError("rename to " + target.string(), error.value());
}

}  // namespace lockstep
