#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/comm/internal/agreement.h"
#include "lockstep/ddp/internal/weighted_pass.h"

namespace lockstep::inline internal {

/// The weight of this rank's gradients since the last exchange, and the numbers that ranks send
/// with it.
/// Threads: one at a time.
class GradientWeight {
 public:
  /// How a backward pass applies its weight: `seed` multiplies the gradient of the loss, `factor`
  /// the gradients that arrive at the parameters. A float16 or bfloat16 loss gets the rounded
  /// weight as seed, which layers that communicate in backward see. The rest is `factor`, in units
  /// of the first pass's rest; unit() is applied once all ranks' are known. The first pass decides
  /// for all until the exchange.
  struct Parts {
    double seed = 1;
    double factor = 1;
  };
  /// `loss`: its dtype.
  Parts parts_of(double weight, at::ScalarType loss);
  /// Whether a gradient of this dtype represents any weight without rounding.
  static bool is_held_by(at::ScalarType loss);
  /// Pending factor of the gradients; empty: their weights are applied.
  std::optional<double> unit() const;

  /// A gradient of a backward pass, or its start: with a weight, or without (null). Returns false
  /// if gradients with and without a weight would be added.
  bool add(const WeightedPass::Facts* pass);

  bool is_weighted() const { return kind_ == Kind::kWeighted; }
  /// Call it after an exchange, and when the gradients are discarded.
  void forget();

  /// Until withdraw_vote(), exchanges find the highest vote of all ranks, and gradients without a
  /// weight are averaged over the ranks with data.
  void cast_vote(bool has_data, int vote);
  /// The highest vote in the last exchange; empty if there was none.
  std::optional<int> withdraw_vote();

  /// Numbers to send at the start of an exchange, if any.
  std::optional<Agreement::Numbers> to_tell() const;
  /// Factor of the average, from the numbers of all ranks.
  static double scale(const std::vector<Agreement::Numbers>& of_ranks);
  void count_votes(const Agreement& agreement);

 private:
  enum class Kind : std::uint8_t { kUnknown, kPlain, kWeighted };
  struct Vote {
    bool has_data = true;
    int own = 0;
    std::optional<int> highest = std::nullopt;
  };

  Kind kind_ = Kind::kUnknown;
  double weight_ = 0;
  bool has_unit_ = false;
  double unit_ = 0;              // the first rest that is not 0
  std::uint64_t last_pass_ = 0;  // last pass that added its weight
  std::optional<Vote> vote_;
};

}  // namespace lockstep::inline internal
