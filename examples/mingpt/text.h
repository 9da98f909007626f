#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mingpt {

/// The files as one text of Unicode characters, one after the other. A folder stands for all *.md
/// and *.txt below it, in the order of their paths.
/// Errors: SystemError when one cannot be read; UsageError for a folder without such files;
/// CorruptFile naming the place for text that is not UTF-8.
std::u32string read_text(const std::vector<std::string>& paths);

std::string to_utf8(std::u32string_view text);
/// `source` is what messages call the text. Errors: CorruptFile unless it is UTF-8.
std::u32string from_utf8(std::string_view text, const std::string& source);

}  // namespace mingpt
