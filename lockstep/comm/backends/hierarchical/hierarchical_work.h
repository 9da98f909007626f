#pragma once

#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/comm/backends/hierarchical/pipeline.h"

namespace lockstep::hierarchical {

/// A collective of Gloo over all ranks, or a message within the machine. Its wait advances the
/// group's pipeline, because a peer may wait for one of its collectives first.
/// Lifetime: keeps the backend alive.
class PartWork : public c10d::Work {
 public:
  PartWork(c10::intrusive_ptr<c10d::Backend> backend, Pipeline& pipeline,
           c10::intrusive_ptr<c10d::Work> work);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 protected:
  const c10::intrusive_ptr<c10d::Backend> backend_;
  Pipeline& pipeline_;
  const c10::intrusive_ptr<c10d::Work> work_;
};

/// A message of Gloo between machines. Its isCompleted() needs a thread; wait() avoids it if no
/// collective of the pipeline is running.
class MessageWork final : public PartWork {
 public:
  using PartWork::PartWork;
  bool wait(std::chrono::milliseconds timeout) override;
};

}  // namespace lockstep::hierarchical
