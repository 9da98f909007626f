#pragma once

#include <string>
#include <string_view>

namespace lockstep::inline internal {

/// As text of a page, and within quotes of an attribute. Pure.
std::string html_text(std::string_view text);

}  // namespace lockstep::inline internal
