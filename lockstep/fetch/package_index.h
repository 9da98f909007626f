#pragma once

#include <string>

namespace lockstep {

/// Where a Python package index (PEP 503, PEP 691) lists a package's files.
std::string package_page_url(const std::string& index_url, const std::string& package);

/// What to send as Accept: JSON where the index has it, else HTML.
inline constexpr const char* kPackagePageTypes =
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, "
    "text/html;q=0.1";

/// The URL of `file_name` in a page of either kind that came from `page_url`. Errors: DownloadError
/// when the page does not list the file or is no such page.
std::string package_file_url(const std::string& page, const std::string& page_url,
                             const std::string& file_name);

}  // namespace lockstep
