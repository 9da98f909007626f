#pragma once

#include <string>

namespace lockstep {

/// "https", "http" or "file". Errors: UsageError naming the URL when it is none, or of another
/// kind.
std::string url_scheme(const std::string& url);

/// What `reference`, found on the page `base`, names. Errors: UsageError.
std::string join_url(const std::string& base, const std::string& reference);

/// The URL as messages may show it: without user and password, query and fragment.
std::string shown_url(const std::string& url);

}  // namespace lockstep
