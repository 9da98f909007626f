#pragma once

#include <filesystem>
#include <system_error>

namespace lockstep::inline internal {

/// Removes a file, or a directory with all it holds; symbolic links are not followed. What is not
/// there, or is removed by another process meanwhile, is no error.
/// `error`: the first that occurred, which ends the removal.
/// std::filesystem::remove_all is of no use in a program with LibTorch: libtorch.so of the CUDA
/// wheels of 2.11 exports a copy of it that calls address 0.
void remove_tree(const std::filesystem::path& path, std::error_code& error);

}  // namespace lockstep::inline internal
