#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "examples/mingpt/vocabulary.h"
#include "models/gpt.h"

namespace mingpt {

struct SampleOptions {
  /// Empty: the first character, in most texts the line's end.
  std::string prompt = {};
  std::int64_t length = 200;
  double temperature = 0.8;
  std::optional<std::int64_t> top_k = std::nullopt;
  std::uint64_t seed = 0;
};

/// The prompt and `length` characters that the model puts after it; the same in every run. The
/// random generators of training are not touched.
/// Errors: UsageError for a character that the model does not know; as models::generate.
std::string sample_text(models::GptImpl& gpt, const Vocabulary& vocabulary,
                        const SampleOptions& options);

}  // namespace mingpt
