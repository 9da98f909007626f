#include "models/gpt_generate.h"

#include <algorithm>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace models {
namespace {

void check_generate(const at::Tensor& idx, const GenerateOptions& options) {
  using lockstep::concat;
  if (idx.dim() != 2 || idx.size(1) < 1) {
    throw lockstep::UsageError(concat("generate: tokens of shape ", idx.sizes(),
                                      "; give [batch, length] with at least one each"));
  }
  if (!(options.temperature >= 0)) {
    throw lockstep::UsageError(
        concat("generate: temperature is ", options.temperature, "; it must be at least 0"));
  }
  if (options.top_k && *options.top_k < 1) {
    throw lockstep::UsageError(
        concat("generate: top_k is ", *options.top_k, "; it must be at least 1"));
  }
}

/// `logits`: [batch, vocab_size]. Gives [batch, 1].
at::Tensor next_token(at::Tensor logits, const GenerateOptions& options) {
  if (options.temperature == 0) return logits.argmax(-1, /*keepdim=*/true);
  logits = logits.to(at::kFloat) / options.temperature;
  if (options.top_k) {
    const auto kept = std::min(*options.top_k, logits.size(-1));
    const at::Tensor least = std::get<0>(at::topk(logits, kept)).narrow(-1, kept - 1, 1);
    logits = logits.masked_fill(logits < least, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor drawn = at::multinomial(logits.softmax(-1).cpu(), /*num_samples=*/1,
                                           /*replacement=*/false, options.generator);
  return drawn.to(logits.device());
}

}  // namespace

at::Tensor generate(GptImpl& gpt, const at::Tensor& idx, const GenerateOptions& options) {
  check_generate(idx, options);
  const at::NoGradGuard no_grad;
  const bool was_training = gpt.is_training();
  gpt.eval();
  at::Tensor tokens = idx;
  for (std::int64_t i = 0; i < options.max_new_tokens; ++i) {
    const auto seen = std::min(tokens.size(1), gpt.config().block_size);
    const auto [logits, loss] = gpt.forward(tokens.narrow(1, tokens.size(1) - seen, seen));
    tokens = at::cat({tokens, next_token(logits.select(1, -1), options)}, 1);
  }
  gpt.train(was_training);
  return tokens;
}

}  // namespace models
