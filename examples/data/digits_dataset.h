#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>

namespace examples {

struct DigitsSplit;

/// Handwritten digits of 8×8 pixels: images of shape [1, 8, 8], float32 of 0 to 1, and labels of 0
/// to 9 (int64). The UCI optical digits are in examples/data/digits.csv.
///
///   auto [train, test] = DigitsDataset::read("examples/data/digits.csv").split();
///   auto loader = torch::data::make_data_loader(train.map(torch::data::transforms::Stack<>()), …);
///
/// Copies share the samples. Threads: any may read.
class DigitsDataset : public torch::data::datasets::Dataset<DigitsDataset> {
 public:
  /// Reads a file of the form digits_csv.h describes. Errors: SystemError or UsageError
  /// when it cannot be read, CorruptFile naming the line when it holds anything else.
  static DigitsDataset read(const std::filesystem::path& file);

  /// Holds out `test_fraction` of the samples, chosen by `seed` alone: the same ones on every rank
  /// and in every run. Errors: UsageError unless 0 < test_fraction < 1, or when a part has nothing.
  DigitsSplit split(double test_fraction = 0.2, std::uint64_t seed = 0) const;

  torch::data::Example<> get(std::size_t index) override;
  std::optional<std::size_t> size() const override;

  const at::Tensor& images() const { return images_; }
  const at::Tensor& labels() const { return labels_; }

 private:
  DigitsDataset(at::Tensor images, at::Tensor labels);

  at::Tensor images_;  ///< [size, 1, 8, 8], float32
  at::Tensor labels_;  ///< [size], int64
};

struct DigitsSplit {
  DigitsDataset train;
  DigitsDataset test;
};

}  // namespace examples
