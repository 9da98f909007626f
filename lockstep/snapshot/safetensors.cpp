#include "lockstep/snapshot/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <set>
#include <utility>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/atomic_file.h"
#include "lockstep/os/files/readable_file.h"
#include "lockstep/snapshot/internal/safetensors_header.h"
#include "lockstep/snapshot/internal/safetensors_layout.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's numbers are little-endian");

constexpr std::size_t kHeaderLengthBytes = sizeof(std::uint64_t);

[[noreturn]] void refuse_tensor(const std::string& name, const std::string& what) {
  throw UsageError(concat("save safetensors: '", name, "' is ", what));
}

SafetensorsEntry entry_of(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) refuse_tensor(name, "an undefined tensor; leave it out");
  if (tensor.layout() != at::kStrided || tensor.is_quantized() ||
      !is_safetensors_dtype(tensor.scalar_type())) {
    refuse_tensor(name, concat("of dtype ", tensor.dtype().name(), " and layout ", tensor.layout(),
                               ", which the format does not have; convert it to a dense tensor of "
                               "another dtype, or write a .pt file"));
  }
  return {.name = name, .dtype = tensor.scalar_type(), .shape = tensor.sizes().vec()};
}

}  // namespace

void save_safetensors(const std::filesystem::path& path, const TensorDict& tensors,
                      const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header{.tensors = {}, .metadata = metadata};
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (!names.insert(name).second) {
      throw UsageError(concat("save safetensors: the name '", name, "' is taken; rename one"));
    }
    header.tensors.push_back(entry_of(name, tensor));
  }
  place_safetensors(header.tensors);
  const std::string text = safetensors_header_text(header);
  const std::uint64_t text_bytes = text.size();
  std::vector<std::size_t> order(tensors.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, {}, [&](std::size_t i) {
    // Empty tensors have the place of the one behind them.
    return std::pair(header.tensors[i].begin_bytes, header.tensors[i].end_bytes);
  });

  AtomicFile file(path);
  file.write(&text_bytes, kHeaderLengthBytes);
  file.write(text.data(), text.size());
  for (const std::size_t i : order) {
    const at::Tensor values =
        tensors[i].second.detach().resolve_conj().resolve_neg().cpu().contiguous();
    if (values.nbytes() > 0) file.write(values.const_data_ptr(), values.nbytes());
  }
  file.commit();
}

inline namespace internal {

SafetensorsLayout read_safetensors_layout(const ReadableFile& file) {
  const std::string source = concat("read ", file.path().string());
  const std::uint64_t size = file.size_bytes();
  std::uint64_t text_bytes = 0;
  if (size >= kHeaderLengthBytes) file.read(0, &text_bytes, kHeaderLengthBytes);
  if (size < kHeaderLengthBytes || text_bytes > size - kHeaderLengthBytes ||
      text_bytes > kMaxSafetensorsHeaderBytes) {
    throw CorruptFile(concat(source, ": its header of ", text_bytes, " bytes is not in its ", size,
                             "; it is truncated, or no safetensors file: take another copy"));
  }
  std::string text(text_bytes, '\0');
  file.read(kHeaderLengthBytes, text.data(), text.size());
  const std::uint64_t data_begin = kHeaderLengthBytes + text_bytes;
  return {parse_safetensors_header(text, size - data_begin, source), data_begin};
}

}  // namespace internal

Safetensors read_safetensors(const std::filesystem::path& path) {
  const ReadableFile file(path);
  SafetensorsLayout layout = read_safetensors_layout(file);
  Safetensors result;
  result.metadata = std::move(layout.header.metadata);
  for (const SafetensorsEntry& entry : layout.header.tensors) {
    at::Tensor tensor = at::empty(entry.shape, entry.dtype);
    if (tensor.nbytes() > 0) {
      file.read(layout.data_begin + entry.begin_bytes, tensor.mutable_data_ptr(), tensor.nbytes());
    }
    result.tensors.emplace_back(entry.name, std::move(tensor));
  }
  return result;
}

bool is_safetensors(const std::filesystem::path& path) {
  const ReadableFile file(path);
  std::array<char, kHeaderLengthBytes + 1> begin{};
  if (file.size_bytes() >= begin.size()) file.read(0, begin.data(), begin.size());
  const bool is_zip = begin[0] == 'P' && begin[1] == 'K';
  return !is_zip && (begin.back() == '{' || path.extension() == ".safetensors");
}

}  // namespace lockstep
