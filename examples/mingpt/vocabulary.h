#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace mingpt {

/// The characters of a text in the order of their code points: a token is a place among them.
class Vocabulary {
 public:
  explicit Vocabulary(std::u32string_view text);
  /// From characters(). Errors: UsageError unless they are in order.
  explicit Vocabulary(const at::Tensor& characters);

  std::int64_t size() const { return static_cast<std::int64_t>(characters_.size()); }

  /// [length] int64. Errors: UsageError naming the first character that is not in it.
  at::Tensor encode(std::u32string_view text) const;
  /// `tokens`: [length] int64, each from 0 to below size().
  std::u32string decode(const at::Tensor& tokens) const;

  /// The code points, [size] int64: for snapshots.
  at::Tensor characters() const;

 private:
  std::u32string characters_;
};

}  // namespace mingpt
