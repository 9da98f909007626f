#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// Texts beside the weights of a folder that programs need with them: config.json, the files of the
/// tokenizer.
struct SideFiles {
  std::map<std::string, std::string> texts = {};  ///< by name
  std::vector<std::string> left_out = {};         ///< "vocab.json (a link out of the folder)"
};

/// All .json and .txt files of the folder but indexes of weights. Left out are links out of the
/// folder, and what is larger than any such file. Errors: SystemError.
SideFiles read_side_files(const std::filesystem::path& folder);

}  // namespace lockstep::inline internal
