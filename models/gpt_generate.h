#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "models/gpt.h"

namespace models {

struct GenerateOptions {
  std::int64_t max_new_tokens = 100;
  /// Divides the logits: below 1 surer, above 1 more varied. 0: always the likeliest token.
  double temperature = 1.0;
  /// Choose among this many likeliest tokens only. Unset: among all.
  std::optional<std::int64_t> top_k = std::nullopt;
  /// Draws the tokens: one of the CPU, on whatever device the model is. Unset: the default one.
  std::optional<at::Generator> generator = std::nullopt;
};

/// Continues each of the sequences `idx`, [batch, length >= 1] int64, by max_new_tokens; gives both
/// together. Calls the module in evaluation mode, with the last block_size tokens each time, and
/// leaves its mode as it was.
/// Errors: UsageError for no token to begin with, a temperature below 0 or a top_k below 1.
at::Tensor generate(GptImpl& gpt, const at::Tensor& idx, const GenerateOptions& options = {});

}  // namespace models
