#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

/// What the tests of this folder share.
namespace lockstep::testing {

std::string file_bytes(const std::filesystem::path& path);
void put_file_bytes(const std::filesystem::path& path, const std::string& bytes);

/// Same dtype, sizes, strides and bits: equal NaNs are the same, 0.0 and -0.0 are not.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

/// Limits the size of files that this process can write during its life: simulates a full disk
/// without privileges.
class FullDisk {
 public:
  explicit FullDisk(std::size_t bytes);
  ~FullDisk();
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  std::size_t limit_before_;
  void (*handler_before_)(int);
};

/// The message of the error of type `Expected` that `action` throws.
template <class Expected>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "no error";
}

}  // namespace lockstep::testing
