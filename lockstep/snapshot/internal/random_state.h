#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/snapshot/snapshot.h"

namespace lockstep::inline internal {

/// State of a device's default random generator (torch.get_rng_state, torch.cuda.get_rng_state), a
/// uint8 tensor on the CPU.
at::Tensor random_state(c10::Device device);

/// Sets it.
/// Errors: UsageError if `state` is no state of such a generator.
void set_random_state(c10::Device device, const at::Tensor& state);

/// Throws what set_random_state() would throw for a wrong size or dtype; changes nothing.
void check_random_state(c10::Device device, const at::Tensor& state);

/// One rank's states among those of a snapshot: of the CPU, and of the device that its model is on,
/// if any. A rank that the saving run did not have has none, and keeps its own.
class OwnRandomState {
 public:
  OwnRandomState(int rank, std::optional<c10::Device> device) : rank_(rank), device_(device) {}

  /// Throws what set() would, and changes nothing.
  void check(const Snapshot& snapshot) const;
  void set(const Snapshot& snapshot) const;

 private:
  const at::Tensor* find(const std::vector<at::Tensor>& states) const;

  int rank_;
  std::optional<c10::Device> device_;
};

}  // namespace lockstep::inline internal
