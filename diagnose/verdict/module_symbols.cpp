#include "diagnose/verdict/module_symbols.h"

#include <array>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string_view>
#include <utility>

#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#ifdef LOCKSTEP_HAS_LIBBACKTRACE
#include <backtrace.h>
#endif

namespace lockstep::inline internal {
namespace {

void replace_all(std::string& text, std::string_view old_part, std::string_view new_part) {
  for (auto at = text.find(old_part); at != std::string::npos;
       at = text.find(old_part, at + new_part.size())) {
    text.replace(at, old_part.size(), new_part);
  }
}

#ifdef LOCKSTEP_HAS_LIBBACKTRACE

// libbacktrace looks at the process that it is in and takes the file that it is given for that
// process's program: addresses must be as if it had been loaded where this program is.
std::uint64_t own_base() {
  std::uint64_t base = 0;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        *static_cast<std::uint64_t*>(data) = info->dlpi_addr;
        return 1;  // The program comes first.
      },
      &base);
  return base;
}

void ignore_error(void*, const char*, int) {}

int take_line(void* data, std::uintptr_t, const char* file, int line, const char* function) {
  if (function == nullptr && file == nullptr) return 0;
  static_cast<std::vector<SourceLine>*>(data)->push_back(
      {.function = function != nullptr ? readable_name(function) : "",
       .file = file != nullptr ? file : "",
       .line = line});
  return 0;
}

void take_symbol(void* data, std::uintptr_t, const char* symbol, std::uintptr_t, std::uintptr_t) {
  if (symbol == nullptr) return;
  auto& lines = *static_cast<std::vector<SourceLine>*>(data);
  const std::string name = readable_name(symbol);
  if (lines.empty()) lines.emplace_back();
  // Debug information names a function without its namespace and arguments.
  if (lines.back().function.empty() || name.find(lines.back().function) != std::string::npos) {
    lines.back().function = name;
  }
}

#endif

}  // namespace

#ifdef LOCKSTEP_HAS_LIBBACKTRACE

bool ModuleSymbols::available() {
  return true;
}

ModuleSymbols::ModuleSymbols(const std::string& path) : path_(path) {
  Elf64_Ehdr header{};
  if (!std::ifstream(path_, std::ios::binary)
           .read(reinterpret_cast<char*>(&header), sizeof(header))) {
    return;
  }
  has_fixed_address_ = header.e_type == ET_EXEC;
  state_ = ::backtrace_create_state(path_.c_str(), /*threaded=*/0, ignore_error, nullptr);
}

std::vector<SourceLine> ModuleSymbols::find(std::uint64_t address, std::uint64_t offset) const {
  std::vector<SourceLine> lines;
  if (state_ == nullptr) return lines;
  const std::uintptr_t here = has_fixed_address_ ? address : own_base() + offset;
  ::backtrace_pcinfo(state_, here, take_line, ignore_error, &lines);
  ::backtrace_syminfo(state_, here, take_symbol, ignore_error, &lines);
  return lines;
}

#else

bool ModuleSymbols::available() {
  return false;
}

ModuleSymbols::ModuleSymbols(const std::string& path) : path_(path) {}

std::vector<SourceLine> ModuleSymbols::find(std::uint64_t, std::uint64_t) const {
  return {};
}

#endif

std::string readable_name(const char* symbol) {
  const std::unique_ptr<char, void (*)(void*)> demangled(
      abi::__cxa_demangle(symbol, nullptr, nullptr, nullptr), std::free);
  if (!demangled) {
    // As the C library calls its own functions among itself: __GI___libc_malloc.
    constexpr std::string_view kInternal = "__GI_";
    constexpr std::string_view kLibrary = "__libc_";
    std::string_view plain = symbol;
    if (!plain.starts_with(kInternal)) return symbol;
    plain.remove_prefix(kInternal.size());
    if (plain.starts_with(kLibrary)) plain.remove_prefix(kLibrary.size());
    return std::string(plain);
  }
  std::string name = demangled.get();
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kShortForms = {{
      {"std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >",
       "std::string"},
      {"std::basic_string_view<char, std::char_traits<char> >", "std::string_view"},
      {"(anonymous namespace)::", ""},
  }};
  for (const auto& [long_form, short_form] : kShortForms) replace_all(name, long_form, short_form);
  // Nobody reads more of nested template arguments.
  constexpr std::size_t kLongestBytes = 200;
  if (name.size() > kLongestBytes) name.replace(kLongestBytes, std::string::npos, "...");
  return name;
}

}  // namespace lockstep::inline internal
