#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/data/datasets/base.h>

namespace examples {

enum class CifarPart { kTrain, kTest };

struct CifarOptions {
  /// Subtract CIFAR-100's mean and divide by its standard deviation, channel by channel, as
  /// torchvision's Normalize does; otherwise pixels are 0 to 1.
  bool normalize = true;
  /// Compare the file with the folder's SHA256SUMS, where there is one: half a second for
  /// CIFAR-100's training set, so let one rank of a machine do it where that counts.
  bool verify = true;
};

/// Images of 32×32 RGB pixels in the binary format of CIFAR-100, whatever they show:
/// `examples/data/get.py cifar100` and `examples/data/get.py photos32` make folders of it. A batch
/// is images of shape [N, 3, 32, 32], float32, and their fine labels (int64); it is put together in
/// one pass, so no Stack transform is needed:
///
///   auto train = Cifar100Dataset::read("data/photos32", CifarPart::kTrain);
///   auto loader = torch::data::make_data_loader(train, sampler, batch_size);
///   for (auto& batch : *loader) model(batch.data), batch.target …
///
/// The file is mapped, not read: the ranks of a machine share one copy, and pixels become float32
/// when a batch is made. Copies share all of it. Threads: any may read.
class Cifar100Dataset
    : public torch::data::datasets::BatchDataset<Cifar100Dataset, torch::data::Example<>> {
 public:
  /// Reads train.bin or test.bin of `folder`, or of cifar-100-binary/ in it, and the names of the
  /// classes from fine_label_names.txt, if it is there. The files must stay while it is in use;
  /// another may be renamed over one. Errors: SystemError when it cannot be read, CorruptFile when
  /// it is cut off, a label has no class, or it is not what SHA256SUMS says.
  static Cifar100Dataset read(const std::filesystem::path& folder, CifarPart part,
                              const CifarOptions& options = {});

  /// Makes `size` images up: of 100 classes, in turn, each a pattern of its own under as much
  /// noise, which a network learns within an epoch. Seed, part and index decide each image, so both
  /// parts have the same classes and no image in common.
  static Cifar100Dataset synthetic(std::size_t size, CifarPart part, std::uint64_t seed = 0,
                                   const CifarOptions& options = {});

  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  std::optional<std::size_t> size() const override;

  /// [3, 32, 32] and its label.
  torch::data::Example<> get(std::size_t index);

  /// [size, 3, 32, 32], uint8, as the file has them.
  at::Tensor pixels() const;
  /// [size], int64.
  const at::Tensor& labels() const { return labels_; }
  /// Of the superclasses. [size], int64.
  const at::Tensor& coarse_labels() const { return coarse_labels_; }
  /// Labels are below it.
  std::int64_t class_count() const { return class_count_; }
  /// As many as there are classes, or none where the folder does not tell.
  const std::vector<std::string>& class_names() const { return class_names_; }

 private:
  Cifar100Dataset(at::Tensor records, std::vector<std::string> class_names, const std::string& name,
                  const CifarOptions& options);

  at::Tensor records_;  ///< [size, 3074], uint8
  at::Tensor labels_;
  at::Tensor coarse_labels_;
  std::vector<std::string> class_names_;
  std::int64_t class_count_;
  at::Tensor values_;  ///< [3, 256], float32: what becomes of a byte in each channel
};

}  // namespace examples
