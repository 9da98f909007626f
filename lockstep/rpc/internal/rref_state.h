#pragma once

#include <memory>

#include <ATen/core/rref_interface.h>

#include "lockstep/rpc/internal/value_codec.h"

namespace lockstep::rpc::inline internal {

class PendingCall;
class Worker;

/// State that copies of an RRef share: one hold of this worker on the value, released by the
/// destructor.
class RRefState final : public c10::RRefInterface {
 public:
  /// `making`: the call that makes the value, if it is in flight.
  RRefState(std::weak_ptr<Worker> worker, const RRefKey& key,
            std::shared_ptr<PendingCall> making = nullptr);
  ~RRefState() override;

  const RRefKey& key() const { return key_; }
  std::shared_ptr<Worker> worker() const;
  /// Waits until the owner has the value.
  /// Errors: as rpc::call, if there will be no value.
  void wait_until_ready() const;

  c10::worker_id_t owner() const override { return static_cast<c10::worker_id_t>(key_.owner); }
  std::string ownerName() const override;
  bool isOwner() const override;
  bool confirmedByOwner() const override { return true; }
  const c10::TypePtr type() const override;

 private:
  std::weak_ptr<Worker> worker_;
  const RRefKey key_;
  const std::shared_ptr<PendingCall> making_;
};

}  // namespace lockstep::rpc::inline internal
