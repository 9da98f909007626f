#include "lockstep/data/internal/permutation.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randperm.h>

namespace lockstep::inline internal {

std::vector<std::size_t> random_permutation(std::size_t size, std::uint64_t seed) {
  const at::Tensor numbers = at::randperm(static_cast<std::int64_t>(size),
                                          at::detail::createCPUGenerator(seed), at::kLong);
  const auto* first = numbers.const_data_ptr<std::int64_t>();
  return {first, first + size};
}

}  // namespace lockstep::inline internal
