#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>

namespace mingpt {

/// Pieces of a text for training a model of its next character: piece i is the block_size
/// characters from i × stride on, its target the same one character later. Both [block_size] int64;
/// batches of them [size, block_size].
///
///   CharDataset dataset(tokens, {.block_size = 64});
///   lockstep::DistributedSampler sampler(*dataset.size(), {.process_group = group});
///   auto batch = dataset.get_batch(*sampler.next(32));
///
/// or with torch::data::make_data_loader(dataset, sampler, 32).
/// Copies share the text. Threads: any may read.
class CharDataset
    : public torch::data::datasets::BatchDataset<CharDataset, torch::data::Example<>> {
 public:
  struct Options {
    std::int64_t block_size = 128;
    /// 1, as in the tutorial: pieces overlap and begin at every character. block_size: they lie
    /// side by side, each character is a target once.
    std::int64_t stride = 1;
  };

  /// `tokens`: [length] int64.
  /// Errors: UsageError where the text is too short for one piece, or an option is below 1.
  CharDataset(const at::Tensor& tokens, const Options& options);

  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  std::optional<std::size_t> size() const override;

 private:
  at::Tensor pieces_;  ///< [size, block_size + 1], a view of the text
};

/// A text cut in two. The tutorial draws its test pieces among those that overlap, so that a model
/// has seen nearly all of each; here the end of the text is held out.
struct TextParts {
  at::Tensor train;
  at::Tensor test;
};

/// `train_split`: the part of the tokens that trains, above 0 and at most 1.
TextParts split_text(const at::Tensor& tokens, double train_split);

}  // namespace mingpt
