#include "bench/ddp_step/update_limit.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include "bench/ddp_step/exchange.h"
#include "bench/memory_traffic.h"
#include "lockstep/base/error.h"
#include "lockstep/one_copy/internal/gradient_slots.h"
#include "lockstep/one_copy/internal/pass_files.h"

namespace lockstep::bench {
namespace {

constexpr std::int64_t kChunkElements = 16 * 1024;

// The same on all ranks.
UniqueFd memory_of_all(const ProcessGroup& group) {
  const bool is_first = group.rank() == 0;
  UniqueFd file;
  if (is_first) file = GradientSlots::make_file("limit");
  const int own = file.get();
  std::vector<UniqueFd> received =
      pass_files(group, {.receivers = group.world_size() - 1, .is_receiver = !is_first, .files = 1},
                 std::span(&own, is_first ? 1 : 0));
  return is_first ? std::move(file) : std::move(received.at(0));
}

struct Limit {
  ProcessGroup group;
  std::unique_ptr<GradientSlots> memory;
  at::Tensor gradient;  ///< Of this rank, in the memory.
  at::Tensor parameter, first, second;
  std::vector<const float*> gradients;  ///< This rank's share of all ranks'.

  Limit(const ProcessGroup& control, const std::vector<at::Tensor>& parameters)
      : group(group_over("shm", control)) {
    std::int64_t elements = 0;
    for (const at::Tensor& each : parameters) elements += each.numel();
    const std::int64_t share = elements / group.world_size();
    memory = std::make_unique<GradientSlots>(memory_of_all(group));
    memory->assign(group);
    gradient = memory->allocate(elements, at::kFloat).fill_(1);
    for (at::Tensor* const tensor : {&parameter, &first, &second}) *tensor = at::ones({share});
    const at::Tensor places = at::empty({group.world_size()}, at::kLong);
    const at::Tensor own = at::empty({1}, at::kLong);
    *own.mutable_data_ptr<std::int64_t>() =
        static_cast<std::int64_t>(memory->offset_of(gradient).value());
    group.all_gather_into_tensor(places, own);
    for (int rank = 0; rank < group.world_size(); ++rank) {
      const auto place = static_cast<std::uint64_t>(places.const_data_ptr<std::int64_t>()[rank]);
      gradients.push_back(reinterpret_cast<const float*>(memory->address_of(place)) +
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
      touch(parameter.mutable_data_ptr<float>() + begin, sum,
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
