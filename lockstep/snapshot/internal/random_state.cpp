#include "lockstep/snapshot/internal/random_state.h"

#include <mutex>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

at::Tensor random_state(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void check_random_state(c10::Device device, const at::Tensor& state) {
  const at::Tensor current = random_state(device);
  if (state.scalar_type() == current.scalar_type() && state.sizes() == current.sizes()) return;
  throw UsageError(concat("restore the random state of ", device, ": ", state.dtype().name(),
                          state.sizes(), " is no state of its generator, which has ",
                          current.dtype().name(), current.sizes()));
}

void set_random_state(c10::Device device, const at::Tensor& state) {
  check_random_state(device, state);
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state.contiguous());
}

const at::Tensor* OwnRandomState::find(const std::vector<at::Tensor>& states) const {
  const auto place = static_cast<std::size_t>(rank_);
  return place < states.size() ? &states[place] : nullptr;
}

void OwnRandomState::check(const Snapshot& snapshot) const {
  if (const auto* own = find(snapshot.random_state)) check_random_state(at::kCPU, *own);
  if (!device_) return;
  if (const auto* own = find(snapshot.cuda_random_state)) check_random_state(*device_, *own);
}

void OwnRandomState::set(const Snapshot& snapshot) const {
  if (const auto* own = find(snapshot.random_state)) set_random_state(at::kCPU, *own);
  if (!device_) return;
  if (const auto* own = find(snapshot.cuda_random_state)) set_random_state(*device_, *own);
}

}  // namespace lockstep::inline internal
