#include "examples/mingpt/vocabulary.h"

#include <algorithm>
#include <functional>

#include <ATen/ops/empty.h>

#include "examples/mingpt/text.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace mingpt {

Vocabulary::Vocabulary(std::u32string_view text) : characters_(text) {
  std::sort(characters_.begin(), characters_.end());
  characters_.erase(std::unique(characters_.begin(), characters_.end()), characters_.end());
}

Vocabulary::Vocabulary(const at::Tensor& characters) {
  const at::Tensor points = characters.to(at::kLong).contiguous();
  for (const auto* point = points.const_data_ptr<std::int64_t>();
       point != points.const_data_ptr<std::int64_t>() + points.numel(); ++point) {
    characters_.push_back(static_cast<char32_t>(*point));
  }
  if (!std::is_sorted(characters_.begin(), characters_.end(), std::less_equal<>())) {
    throw lockstep::UsageError("read a vocabulary: its characters are not in order");
  }
}

at::Tensor Vocabulary::encode(std::u32string_view text) const {
  at::Tensor tokens = at::empty({static_cast<std::int64_t>(text.size())}, at::kLong);
  auto* token = tokens.mutable_data_ptr<std::int64_t>();
  for (const char32_t character : text) {
    const auto place = std::lower_bound(characters_.begin(), characters_.end(), character);
    if (place == characters_.end() || *place != character) {
      throw lockstep::UsageError(lockstep::concat(
          "encode text: the character '", to_utf8({&character, 1}), "' is not among the ", size(),
          " of the text that the model was trained on; leave it out"));
    }
    *token++ = place - characters_.begin();
  }
  return tokens;
}

std::u32string Vocabulary::decode(const at::Tensor& tokens) const {
  const at::Tensor places = tokens.cpu().contiguous();
  std::u32string text;
  const auto* place = places.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < places.numel(); ++i) {
    text.push_back(characters_.at(static_cast<std::size_t>(place[i])));
  }
  return text;
}

at::Tensor Vocabulary::characters() const {
  at::Tensor points = at::empty({size()}, at::kLong);
  std::copy(characters_.begin(), characters_.end(), points.mutable_data_ptr<std::int64_t>());
  return points;
}

}  // namespace mingpt
