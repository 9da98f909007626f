#pragma once

#include <filesystem>
#include <system_error>

namespace lockstep::inline internal {

/// Removes a file, or a directory with its content; does not follow symbolic links. Missing files,
/// also those that another process removes meanwhile, are no error. `error`: the first error, which
/// ends the removal.
/// It replaces std::filesystem::remove_all, because libtorch.so of the CUDA wheels of 2.11 exports
/// a copy of that function that calls address 0.
void remove_tree(const std::filesystem::path& path, std::error_code& error);

}  // namespace lockstep::inline internal
