#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/comm/internal/agreement.h"
#include "lockstep/ddp/internal/weighted_pass.h"

namespace lockstep::inline internal {

/// What this rank's gradients since the last exchange count beside those of other ranks, and what
/// it tells the others beside that. Threads: one at a time.
class GradientWeight {
 public:
  /// How a pass of a loss with this weight applies it: `seed` to the gradient of the loss, `factor`
  /// to the gradients that arrive at the parameters. A float16 or bfloat16 loss takes the weight
  /// rounded, so that layers which exchange in backward have it; what is left is applied to what
  /// arrives, in units of the first pass's, and unit() once all ranks' are known. The first pass
  /// decides for all until the exchange. `loss`: its dtype.
  struct Parts {
    double seed = 1;
    double factor = 1;
  };
  Parts parts_of(double weight, at::ScalarType loss);
  /// Whether the gradient of a loss of this dtype holds any weight without rounding it.
  static bool is_held_by(at::ScalarType loss);
  /// What the gradients are yet to be multiplied by; nothing where their weights are in them.
  std::optional<double> unit() const;

  /// A gradient of a backward pass, or its beginning: of a loss with a weight, or (null) without.
  /// False: gradients with and without a weight would be added up.
  bool add(const WeightedPass::Facts* pass);

  bool is_weighted() const { return kind_ == Kind::kWeighted; }
  /// After an exchange, and where what was added up was given up.
  void forget();

  /// Until withdrawn, exchanges find the highest vote of all ranks, and gradients without a weight
  /// are averaged over the ranks that have data.
  void cast_vote(bool has_data, int vote);
  /// The highest vote of the last exchange; nothing where there was none.
  std::optional<int> withdraw_vote();

  /// What the ranks tell each other when they begin an exchange, if anything.
  std::optional<Agreement::Numbers> to_tell() const;
  /// What the average is multiplied by, given what all ranks have told.
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
  double unit_ = 0;              // the first weight that is not 0
  std::uint64_t last_pass_ = 0;  // that has added its weight
  std::optional<Vote> vote_;
};

}  // namespace lockstep::inline internal
