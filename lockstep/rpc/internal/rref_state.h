#pragma once

#include <memory>

#include <ATen/core/rref_interface.h>

#include "lockstep/rpc/internal/value_codec.h"

namespace lockstep::rpc::inline internal {

class PendingCall;
class Worker;

/// What copies of an RRef share: one hold of this worker on the value, given back at its end.
class RRefState final : public c10::RRefInterface {
 public:
  /// `making`: the call that makes the value, where that is under way.
  RRefState(std::weak_ptr<Worker> worker, const RRefKey& key,
            std::shared_ptr<PendingCall> making = nullptr);
  ~RRefState() override;

  const RRefKey& key() const { return key_; }
  std::shared_ptr<Worker> worker() const;
  /// Returns once the owner has the value. Errors: why there will be none.
  void wait_until_made() const;

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
