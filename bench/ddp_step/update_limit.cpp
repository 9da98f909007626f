#include "bench/ddp_step/update_limit.h"

#include <algorithm>
#include <memory>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include "bench/ddp_step/exchange.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/internal/native_collectives.h"

namespace lockstep::bench {
namespace {

constexpr std::int64_t kChunkElements = 16 * 1024;

[[gnu::target_clones("avx512f", "avx2", "default"), gnu::optimize("O3")]] void add_to(
    float* __restrict sum, const float* __restrict gradient, std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) sum[i] += gradient[i];
}

[[gnu::target_clones("avx512f", "avx2", "default"), gnu::optimize("O3")]] void update(
    const float* __restrict sum, float* __restrict parameter, float* __restrict first,
    float* __restrict second, std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) {
    const float g = sum[i];
    parameter[i] += g;
    first[i] += g;
    second[i] += g;
  }
}

struct Limit {
  ProcessGroup group;
  at::Tensor gradient;  ///< Of this rank, shared.
  at::Tensor parameter, first, second;
  std::vector<const float*> gradients;  ///< This rank's share of all ranks'.

  Limit(const ProcessGroup& control, const std::vector<at::Tensor>& parameters)
      : group(group_over("shm", control)) {
    std::int64_t elements = 0;
    for (const at::Tensor& each : parameters) elements += each.numel();
    const std::int64_t share = elements / group.world_size();
    gradient = group.allocate_tensor(elements, at::kFloat).fill_(1);
    for (at::Tensor* const tensor : {&parameter, &first, &second}) *tensor = at::ones({share});
    const at::Tensor places = at::empty({group.world_size()}, at::kLong);
    const at::Tensor own = at::empty({1}, at::kLong);
    *own.mutable_data_ptr<std::int64_t>() =
        static_cast<std::int64_t>(shared_offset(group, gradient).value());
    group.all_gather_into_tensor(places, own);
    for (int rank = 0; rank < group.world_size(); ++rank) {
      const auto place = static_cast<std::uint64_t>(places.const_data_ptr<std::int64_t>()[rank]);
      gradients.push_back(
          reinterpret_cast<const float*>(shared_address(group, place, gradient.nbytes())) +
          share * group.rank());
    }
  }

  void run() {
    group.barrier();
    alignas(64) float sum[kChunkElements];
    const std::int64_t elements = parameter.numel();
    for (std::int64_t begin = 0; begin < elements; begin += kChunkElements) {
      const std::int64_t count = std::min(kChunkElements, elements - begin);
      std::fill_n(sum, count, 0.0F);
      for (const float* const of_rank : gradients) add_to(sum, of_rank + begin, count);
      update(sum, parameter.mutable_data_ptr<float>() + begin,
             first.mutable_data_ptr<float>() + begin, second.mutable_data_ptr<float>() + begin,
             count);
    }
    group.barrier();
  }
};

}  // namespace

std::function<void()> make_update_limit(const ProcessGroup& control,
                                        const std::vector<at::Tensor>& parameters) {
  const auto limit = std::make_shared<Limit>(control, parameters);
  return [limit] { limit->run(); };
}

}  // namespace lockstep::bench
