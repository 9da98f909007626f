#include "lockstep/os/process/loaded_libraries.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include <link.h>

namespace lockstep::inline internal {
namespace {

constexpr std::array kFolders{"/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/"};
constexpr std::array kTorch{"libc10", "libgomp", "libtorch", "libtorch_cpu",
                            "libtorch_global_deps"};
constexpr std::array kCuda{
    "libtorch_cuda", "libtorch_cuda_linalg", "libc10_cuda", "libcaffe2_nvrtc", "libcudart",
    "libcublas",     "libcublasLt",          "libcudnn",    "libcufft",        "libcufile",
    "libcurand",     "libcusolver",          "libcusparse", "libcusparseLt",   "libcupti",
    "libnccl",       "libnvToolsExt",        "libnvrtc",    "libnvJitLink",    "libnvshmem_host"};
// Whole names of files; the second are those of the system in its folders.
constexpr std::array kFilesOfTorch{"libc10.so", "libgomp.so.1", "libtorch.so", "libtorch_cpu.so",
                                   "libtorch_global_deps.so"};
constexpr std::array kFilesOfCompiler{"ld-linux-x86-64.so.2",
                                      "ld-linux-aarch64.so.1",
                                      "libc.so.6",
                                      "libdl.so.2",
                                      "libgcc_s.so.1",
                                      "libm.so.6",
                                      "libpthread.so.0",
                                      "librt.so.1",
                                      "libstdc++.so.6",
                                      "libz.so.1"};

template <class Names>
bool is_one_of(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

std::string_view file_of(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

bool is_in_system(std::string_view path) {
  return std::ranges::any_of(kFolders, [&](auto folder) { return path.starts_with(folder); });
}

bool is_runtime(std::string_view path) {
  const std::string_view file = file_of(path);
  return is_one_of(kFilesOfTorch, file) ||
         file.starts_with("libgomp-") ||  // libgomp-98df74fd.so.1.0.0, of a wheel.
         (is_in_system(path) && is_one_of(kFilesOfCompiler, file));
}

bool is_system(std::string_view path) {
  const std::string_view file = file_of(path);
  const std::string_view name = file.substr(0, file.find_first_of("-."));
  return is_in_system(path) || is_one_of(kTorch, name) || is_one_of(kCuda, name);
}

using IsKnown = bool (*)(std::string_view path);

bool all_libraries(IsKnown is_known) {
  return ::dl_iterate_phdr(
             [](dl_phdr_info* library, std::size_t, void* predicate) {
               const std::string_view path = library->dlpi_name;
               if (path.find('/') == std::string_view::npos)
                 return 0;  // The program, and the kernel's own.
               return (*static_cast<IsKnown*>(predicate))(path) ? 0 : 1;
             },
             &is_known) == 0;
}

}  // namespace

bool has_only_runtime_libraries() {
  return all_libraries(is_runtime);
}

bool has_only_system_libraries() {
  return all_libraries(is_system);
}

}  // namespace lockstep::inline internal
