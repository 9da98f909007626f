#include "lockstep/fetch/url.h"

#include <memory>

#include <curl/curl.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using UrlHandle = std::unique_ptr<CURLU, decltype(&curl_url_cleanup)>;

// libcurl gives memory of its own.
std::string taken(char* text) {
  std::string result = text == nullptr ? "" : text;
  curl_free(text);
  return result;
}

std::string part_of(const UrlHandle& url, CURLUPart part) {
  char* text = nullptr;
  return curl_url_get(url.get(), part, &text, 0) == CURLUE_OK ? taken(text) : std::string();
}

UrlHandle parsed(const std::string& url) {
  UrlHandle handle(curl_url(), curl_url_cleanup);
  if (handle == nullptr || curl_url_set(handle.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) {
    throw UsageError(concat("'", shown_url(url),
                            "' is no URL; as in https://pypi.org/simple or file:///srv/mirror"));
  }
  return handle;
}

}  // namespace

std::string url_scheme(const std::string& url) {
  std::string scheme = part_of(parsed(url), CURLUPART_SCHEME);
  if (scheme != "https" && scheme != "http" && scheme != "file") {
    throw UsageError(concat("URL ", shown_url(url), " is of kind '", scheme,
                            "'; give one that begins with https://, http:// or file://"));
  }
  return scheme;
}

std::string join_url(const std::string& base, const std::string& reference) {
  const UrlHandle url = parsed(base);
  if (curl_url_set(url.get(), CURLUPART_URL, reference.c_str(), 0) != CURLUE_OK) {
    throw UsageError(
        concat("page ", shown_url(base), " names '", shown_url(reference), "', which is no URL"));
  }
  return part_of(url, CURLUPART_URL);
}

std::string shown_url(const std::string& url) {
  std::string plain = url.substr(0, url.find_first_of("?#"));
  const std::size_t scheme_end = plain.find("://");
  if (scheme_end == std::string::npos) return plain;
  const std::size_t host = scheme_end + 3;
  const std::size_t path = plain.find('/', host);
  const std::size_t at = plain.substr(0, path).rfind('@');
  return at == std::string::npos || at < host ? plain
                                              : plain.substr(0, host) + plain.substr(at + 1);
}

}  // namespace lockstep
