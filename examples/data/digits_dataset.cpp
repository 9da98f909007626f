#include "examples/data/digits_dataset.h"

#include <cerrno>
#include <cmath>
#include <string>
#include <system_error>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randperm.h>

#include "examples/data/digits_csv.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/readable_file.h"

namespace examples {
namespace {

using lockstep::concat;
using lockstep::ReadableFile;
using lockstep::SystemError;
using lockstep::UsageError;

std::string read_text(const std::filesystem::path& file) {
  std::error_code ignored;  // Of exists(): opening the file says the same, better.
  if (!std::filesystem::exists(file, ignored)) {
    throw SystemError("reading the digits dataset " + file.string(), ENOENT,
                      "give a file such as examples/data/digits.csv");
  }
  const ReadableFile readable(file);
  std::string text(readable.size_bytes(), '\0');
  readable.read(0, text.data(), text.size());
  return text;
}

}  // namespace

DigitsDataset::DigitsDataset(at::Tensor images, at::Tensor labels)
    : images_(std::move(images)), labels_(std::move(labels)) {}

DigitsDataset DigitsDataset::read(const std::filesystem::path& file) {
  DigitsTable table = parse_digits_csv(read_text(file), file.string());
  const auto size = static_cast<std::int64_t>(table.labels.size());
  const auto side = static_cast<std::int64_t>(kDigitsSide);
  const at::Tensor pixels = at::from_blob(table.pixels.data(), {size, 1, side, side}, at::kByte);
  const at::Tensor labels = at::from_blob(table.labels.data(), {size}, at::kByte);
  return {pixels.to(at::kFloat).div_(kDigitsPixelMax), labels.to(at::kLong)};
}

DigitsSplit DigitsDataset::split(double test_fraction, std::uint64_t seed) const {
  const std::int64_t count = labels_.numel();
  if (!(test_fraction > 0 && test_fraction < 1)) {
    throw UsageError(concat("DigitsDataset::split: test_fraction is ", test_fraction,
                            ", it must lie between 0 and 1"));
  }
  const std::int64_t test_count = std::llround(static_cast<double>(count) * test_fraction);
  if (test_count == 0 || test_count == count) {
    throw UsageError(concat("DigitsDataset::split: ", test_fraction, " of ", count,
                            " samples leaves the training or the test set without any"));
  }
  const at::Tensor order = at::randperm(count, at::detail::createCPUGenerator(seed), at::kLong);
  const auto part = [&](const at::Tensor& rows) {
    return DigitsDataset(images_.index_select(0, rows), labels_.index_select(0, rows));
  };
  return {part(order.slice(0, test_count)), part(order.slice(0, 0, test_count))};
}

torch::data::Example<> DigitsDataset::get(std::size_t index) {
  const auto row = static_cast<std::int64_t>(index);
  return {images_[row], labels_[row]};
}

std::optional<std::size_t> DigitsDataset::size() const {
  return static_cast<std::size_t>(labels_.numel());
}

}  // namespace examples
