#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/comm/backends/hierarchical/share_exchange.h"
#include "lockstep/comm/backends/shm/operation.h"

namespace lockstep::hierarchical {

/// What one rank does with one piece of a collective: four steps, one after the other, any of which
/// may be empty. The pipeline runs them.
/// Threads: one at a time.
/// Lifetime: refers to the call's tensors and to the connections of the group.
/// Errors: Gloo's.
class PieceSteps {
 public:
  PieceSteps() = default;
  virtual ~PieceSteps() = default;
  PieceSteps(const PieceSteps&) = delete;
  PieceSteps& operator=(const PieceSteps&) = delete;

  /// Bytes of memory that the steps need: `staging`, the same in all steps.
  virtual std::int64_t staging_bytes() const { return 0; }
  /// Within the machine; null, on all of its ranks: nothing.
  virtual std::unique_ptr<shm::Operation> before(const at::Tensor& staging) = 0;
  /// Starts the exchange between machines; null, on all ranks of one local index: nothing.
  virtual std::unique_ptr<GlooCall> exchange(const at::Tensor& staging, Deadline deadline) = 0;
  /// After that exchange: uses what arrived, and may start a second one.
  virtual std::unique_ptr<GlooCall> spread(const at::Tensor& staging, Deadline deadline) = 0;
  /// Whether after() will give something, on all ranks of the machine.
  virtual bool ends_on_machine() const = 0;
  /// As before(), after all that.
  virtual std::unique_ptr<shm::Operation> after(const at::Tensor& staging) = 0;
};

}  // namespace lockstep::hierarchical
