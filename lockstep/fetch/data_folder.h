#pragma once

#include <filesystem>
#include <string>

#include "lockstep/fetch/recipe.h"

namespace lockstep {

struct DataFolderState {
  enum class Kind {
    kFree,      ///< not there, or empty
    kWhole,     ///< the recipe's data, every byte as it was made
    kOutdated,  ///< a data set, but damaged or of another recipe: it may be replaced
    kForeign,   ///< holds what no recipe made: it must not be touched
  };
  Kind kind = Kind::kFree;
  /// Why it is neither free nor whole: "train.bin was changed".
  std::string reason{};
};

/// Compares a folder with its SHA256SUMS and the recipe. Errors: SystemError when it cannot be
/// read.
DataFolderState inspect_data_folder(const std::filesystem::path& folder, const Recipe& recipe);

/// Writes what stands beside the data: licences, recipe and, of all files, SHA256SUMS.
void seal_data_folder(const std::filesystem::path& folder, const Recipe& recipe);

}  // namespace lockstep
