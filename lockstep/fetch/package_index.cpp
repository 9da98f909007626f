#include "lockstep/fetch/package_index.h"

#include <cctype>
#include <string_view>

#include <curl/curl.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/concat.h"
#include "lockstep/fetch/download_error.h"
#include "lockstep/fetch/url.h"

namespace lockstep {
namespace {

// PEP 503: lower case, and one '-' for each run of '-', '_' and '.'.
std::string normalized_package_name(const std::string& name) {
  std::string result;
  for (const char c : name) {
    const bool separator = c == '-' || c == '_' || c == '.';
    if (!separator) {
      result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!result.ends_with('-')) {
      result += '-';
    }
  }
  return result;
}

std::string percent_decoded(const std::string& text) {
  int length = 0;
  char* const decoded = curl_easy_unescape(nullptr, text.c_str(), 0, &length);
  if (decoded == nullptr) return text;
  std::string result(decoded, static_cast<std::size_t>(length));
  curl_free(decoded);
  return result;
}

// The end of the path that a link names.
std::string linked_file(const std::string& link) {
  const std::string path = link.substr(0, link.find_first_of("?#"));
  return percent_decoded(path.substr(path.rfind('/') + 1));
}

std::string link_in_json(const std::string& page, const std::string& file_name) {
  const auto json = nlohmann::json::parse(page, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("files") || !json["files"].is_array()) return "";
  for (const auto& file : json["files"]) {
    if (!file.is_object()) continue;
    const auto name = file.find("filename");
    const auto url = file.find("url");
    const bool complete =
        name != file.end() && name->is_string() && url != file.end() && url->is_string();
    if (complete && *name == file_name) return url->get<std::string>();
  }
  return "";
}

std::string link_in_html(const std::string& page, const std::string& file_name) {
  constexpr std::string_view kAttribute = "href=";
  for (std::size_t at = 0; (at = page.find(kAttribute, at)) != std::string::npos;) {
    at += kAttribute.size();
    if (at >= page.size() || (page[at] != '"' && page[at] != '\'')) continue;
    const std::size_t end = page.find(page[at], at + 1);
    if (end == std::string::npos) break;
    std::string link = page.substr(at + 1, end - at - 1);
    if (linked_file(link) == file_name) return link;
    at = end;
  }
  return "";
}

}  // namespace

std::string package_page_url(const std::string& index_url, const std::string& package) {
  const bool is_folder = url_scheme(index_url) == "file";
  return concat(index_url, index_url.ends_with('/') ? "" : "/", normalized_package_name(package),
                is_folder ? "/index.html" : "/");
}

std::string package_file_url(const std::string& page, const std::string& page_url,
                             const std::string& file_name) {
  const std::size_t first = page.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string::npos && page[first] == '{';
  const std::string link = is_json ? link_in_json(page, file_name) : link_in_html(page, file_name);
  if (link.empty()) {
    throw DownloadError(concat("package index page ", shown_url(page_url), " does not list ",
                               file_name,
                               "; name an index that has it, as in --index-url "
                               "https://pypi.org/simple"));
  }
  std::string url = join_url(page_url, link);
  if (url_scheme(url) == "file" && url_scheme(page_url) != "file") {
    throw DownloadError(concat("package index page ", shown_url(page_url), " lists ", file_name,
                               " as a file of this machine; name another index by --index-url"));
  }
  return url;
}

}  // namespace lockstep
