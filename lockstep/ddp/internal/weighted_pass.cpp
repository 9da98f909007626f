#include "lockstep/ddp/internal/weighted_pass.h"

#include <atomic>
#include <memory>
#include <string_view>
#include <type_traits>

namespace lockstep::inline internal {
namespace {

inline constexpr std::string_view kWeightedPassName = "LOCKSTEP_WEIGHTED_PASS";

// LibTorch has told kinds apart by the address of their names since 2.13, before by numbers.
template <class Kind>
Kind weighted_pass_kind() {
  if constexpr (std::is_enum_v<Kind>) {
    return static_cast<Kind>(0x4c);
  } else {
    return Kind(&kWeightedPassName);
  }
}

struct WeightedPassInfo final : c10::DebugInfoBase {
  explicit WeightedPassInfo(const WeightedPass::Facts& of)
      : facts{.weight = of.weight, .is_in_loss = of.is_in_loss, .number = ++passes} {}
  const WeightedPass::Facts facts;
  static inline std::atomic<std::uint64_t> passes = 0;
};

}  // namespace

WeightedPass::WeightedPass(const Facts& facts)
    : guard_(weighted_pass_kind<c10::DebugInfoKind>(), std::make_shared<WeightedPassInfo>(facts)) {}

const WeightedPass::Facts* WeightedPass::current() {
  const auto* const info = c10::ThreadLocalDebugInfo::get(weighted_pass_kind<c10::DebugInfoKind>());
  return info == nullptr ? nullptr : &static_cast<const WeightedPassInfo*>(info)->facts;
}

}  // namespace lockstep::inline internal
