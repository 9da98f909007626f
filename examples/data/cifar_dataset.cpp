#include "examples/data/cifar_dataset.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <sstream>
#include <system_error>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_file.h>

#include "examples/data/checksum_list.h"
#include "examples/data/cifar_format.h"
#include "examples/data/synthetic_cifar.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/readable_file.h"

namespace examples {
namespace {

using lockstep::concat;
using lockstep::CorruptFile;
using lockstep::ReadableFile;
using lockstep::SystemError;
using lockstep::UsageError;

namespace fs = std::filesystem;

constexpr auto kRecordBytes = static_cast<std::int64_t>(kCifarRecordBytes);
constexpr auto kSide = static_cast<std::int64_t>(kCifarSide);
constexpr std::int64_t kByteValues = 256;

/// Of the training set, as torchvision's users write them.
constexpr std::array kChannelMeans = {0.5071F, 0.4867F, 0.4408F};
constexpr std::array kChannelDeviations = {0.2675F, 0.2565F, 0.2761F};

bool is_there(const fs::path& file) {
  std::error_code ignored;  // Opening the file says the same, better.
  return fs::exists(file, ignored);
}

// The folder itself, or the one in it that CIFAR-100's archive makes.
fs::path folder_with(const char* file, const fs::path& folder) {
  const fs::path inner = folder / "cifar-100-binary";
  return !is_there(folder / file) && is_there(inner / file) ? inner : folder;
}

at::Tensor map_records(const fs::path& path) {
  if (!is_there(path)) {
    throw SystemError("reading the CIFAR-100 dataset " + path.string(), ENOENT,
                      "get it with python3 examples/data/get.py cifar100, or the small photos32 "
                      "of the same format, and name the folder");
  }
  const auto size_bytes = static_cast<std::int64_t>(ReadableFile(path).size_bytes());
  if (size_bytes == 0 || size_bytes % kRecordBytes != 0) {
    throw CorruptFile(concat("CIFAR-100 dataset ", path.string(), " has ", size_bytes,
                             " bytes, which is no number of records of ", kRecordBytes,
                             " bytes: it is cut off or of another format; get it again"));
  }
  return at::from_file(path.string(), /*shared=*/false, size_bytes, at::kByte)
      .view({-1, kRecordBytes});
}

void verify(const at::Tensor& records, const fs::path& path) {
  const fs::path list_path = path.parent_path() / kChecksumListName;
  if (!is_there(list_path)) return;
  const auto list = parse_checksum_list(ReadableFile(list_path).text(), list_path.string());
  const auto entry = std::find_if(list.begin(), list.end(), [&](const FileChecksum& file) {
    return file.name == path.filename().string();
  });
  if (entry == list.end()) return;
  const std::string sha256 =
      sha256_of(records.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(records.nbytes()));
  if (sha256 != entry->sha256) {
    throw CorruptFile(concat("CIFAR-100 dataset ", path.string(), " has SHA-256 ", sha256, ", but ",
                             list_path.filename().string(), " says ", entry->sha256,
                             ": it was changed or damaged; remove the folder and get it again with "
                             "python3 examples/data/get.py"));
  }
}

std::vector<std::string> read_names(const fs::path& path) {
  std::vector<std::string> names;
  if (!is_there(path)) return names;
  std::istringstream lines(ReadableFile(path).text());
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) names.push_back(std::move(line));
  }
  return names;
}

// Byte `column` of each record, as int64.
at::Tensor label_column(const at::Tensor& records, std::int64_t column) {
  return records.select(1, column).to(at::kLong);
}

void check_labels(const at::Tensor& labels, std::int64_t class_count, const std::string& name) {
  const auto* const begin = labels.const_data_ptr<std::int64_t>();
  const auto* const end = begin + labels.numel();
  const auto* const bad =
      std::find_if(begin, end, [&](std::int64_t label) { return label >= class_count; });
  if (bad == end) return;
  throw CorruptFile(concat("CIFAR-100 dataset ", name, ", record ", bad - begin, ": label ", *bad,
                           " is out of range, there are ", class_count,
                           " classes; the file is damaged or of another format"));
}

at::Tensor value_table(bool normalize) {
  at::Tensor table = at::empty({3, kByteValues}, at::kFloat);
  auto* value = table.mutable_data_ptr<float>();
  for (std::size_t channel = 0; channel < 3; ++channel) {
    for (std::int64_t byte = 0; byte < kByteValues; ++byte, ++value) {
      *value = static_cast<float>(byte) / 255.0F;
      if (normalize) *value = (*value - kChannelMeans[channel]) / kChannelDeviations[channel];
    }
  }
  return table;
}

void convert_image(const std::uint8_t* record, const float* values, float* image) {
  const std::uint8_t* pixel = record + kCifarLabelBytes;
  for (std::size_t channel = 0; channel < 3; ++channel, values += kByteValues) {
    for (std::size_t i = 0; i < kCifarPlaneBytes; ++i) *image++ = values[*pixel++];
  }
}

}  // namespace

Cifar100Dataset::Cifar100Dataset(at::Tensor records, std::vector<std::string> class_names,
                                 const std::string& name, const CifarOptions& options)
    : records_(std::move(records)),
      labels_(label_column(records_, 1)),
      coarse_labels_(label_column(records_, 0)),
      class_names_(std::move(class_names)),
      class_count_(class_names_.empty() ? kCifar100Classes
                                        : static_cast<std::int64_t>(class_names_.size())),
      values_(value_table(options.normalize)) {
  check_labels(labels_, class_count_, name);
}

Cifar100Dataset Cifar100Dataset::read(const fs::path& folder, CifarPart part,
                                      const CifarOptions& options) {
  const char* file = part == CifarPart::kTrain ? kCifarTrainFile : kCifarTestFile;
  const fs::path path = folder_with(file, folder) / file;
  at::Tensor records = map_records(path);
  if (options.verify) verify(records, path);
  return {std::move(records), read_names(path.parent_path() / kCifarFineNamesFile), path.string(),
          options};
}

Cifar100Dataset Cifar100Dataset::synthetic(std::size_t size, CifarPart part, std::uint64_t seed,
                                           const CifarOptions& options) {
  if (size == 0) {
    throw UsageError("Cifar100Dataset::synthetic: size is 0; give a number of images from 1");
  }
  at::Tensor records = at::empty({static_cast<std::int64_t>(size), kRecordBytes}, at::kByte);
  auto* next = records.mutable_data_ptr<std::uint8_t>();
  for (std::size_t index = 0; index < size; ++index, next += kCifarRecordBytes) {
    make_synthetic_cifar_record(
        seed, part == CifarPart::kTrain ? 0 : 1, index,
        std::span<std::uint8_t, kCifarRecordBytes>(next, kCifarRecordBytes));
  }
  return {std::move(records), {}, "made up", options};
}

torch::data::Example<> Cifar100Dataset::get_batch(c10::ArrayRef<std::size_t> indices) {
  const auto count = static_cast<std::int64_t>(indices.size());
  at::Tensor images = at::empty({count, 3, kSide, kSide}, at::kFloat);
  at::Tensor labels = at::empty({count}, at::kLong);
  const auto* const records = records_.const_data_ptr<std::uint8_t>();
  const auto* const all_labels = labels_.const_data_ptr<std::int64_t>();
  const auto* const values = values_.const_data_ptr<float>();
  auto* image = images.mutable_data_ptr<float>();
  auto* label = labels.mutable_data_ptr<std::int64_t>();
  for (const std::size_t index : indices) {
    if (index >= *size()) {
      throw UsageError(concat("Cifar100Dataset: there is no image ", index, " of ", *size(),
                              "; make the sampler for the dataset's size"));
    }
    convert_image(records + index * kCifarRecordBytes, values, image);
    image += kCifarImageBytes;
    *label++ = all_labels[index];
  }
  return {std::move(images), std::move(labels)};
}

torch::data::Example<> Cifar100Dataset::get(std::size_t index) {
  const torch::data::Example<> batch = get_batch(index);
  return {batch.data[0], batch.target[0]};
}

std::optional<std::size_t> Cifar100Dataset::size() const {
  return static_cast<std::size_t>(labels_.numel());
}

at::Tensor Cifar100Dataset::pixels() const {
  return records_.narrow(1, kCifarLabelBytes, kCifarImageBytes).unflatten(1, {3, kSide, kSide});
}

}  // namespace examples
