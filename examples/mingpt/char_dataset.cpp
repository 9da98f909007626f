#include "examples/mingpt/char_dataset.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace mingpt {
namespace {

at::Tensor cut(const at::Tensor& tokens, const CharDataset::Options& options) {
  if (options.block_size < 1 || options.stride < 1) {
    throw lockstep::UsageError(lockstep::concat("cut text into pieces: block_size ",
                                                options.block_size, " and stride ", options.stride,
                                                " must be at least 1"));
  }
  if (tokens.numel() <= options.block_size) {
    throw lockstep::UsageError(
        lockstep::concat("cut text into pieces: a piece of block_size ", options.block_size,
                         " and the character after it are more than the ", tokens.numel(),
                         " characters there are; give more text or a smaller block_size"));
  }
  return tokens.unfold(0, options.block_size + 1, options.stride);
}

}  // namespace

CharDataset::CharDataset(const at::Tensor& tokens, const Options& options)
    : pieces_(cut(tokens, options)) {}

torch::data::Example<> CharDataset::get_batch(c10::ArrayRef<std::size_t> indices) {
  at::Tensor rows = at::empty({static_cast<std::int64_t>(indices.size())}, at::kLong);
  std::copy(indices.begin(), indices.end(), rows.mutable_data_ptr<std::int64_t>());
  const at::Tensor pieces = pieces_.index_select(0, rows);
  const auto block_size = pieces.size(1) - 1;
  return {pieces.narrow(1, 0, block_size), pieces.narrow(1, 1, block_size)};
}

std::optional<std::size_t> CharDataset::size() const {
  return static_cast<std::size_t>(pieces_.size(0));
}

TextParts split_text(const at::Tensor& tokens, double train_split) {
  if (!(train_split > 0 && train_split <= 1)) {
    throw lockstep::UsageError(lockstep::concat("split text: train_split is ", train_split,
                                                "; it must be above 0 and at most 1"));
  }
  const auto train = static_cast<std::int64_t>(static_cast<double>(tokens.numel()) * train_split);
  return {tokens.narrow(0, 0, train), tokens.narrow(0, train, tokens.numel() - train)};
}

}  // namespace mingpt
