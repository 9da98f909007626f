#pragma once

#include <map>
#include <tuple>

#include "lockstep/base/internal/check.h"
#include "lockstep/pipeline/internal/stage_link.h"

namespace lockstep::inline internal {

/// Stages in one process, whose passes are made one after the other by one thread.
class LocalLink final : public StageLink {
 public:
  void send(const StageMessage& message, const StageTensor& sent) override {
    waiting_.insert_or_assign(key(message), sent);
  }
  /// The plan sends it before.
  StageTensor receive(const StageMessage& message) override {
    auto sent = waiting_.extract(key(message));
    LOCKSTEP_ASSERT(!sent.empty());
    return std::move(sent.mapped());
  }
  /// After a step that was given up.
  void clear() { waiting_.clear(); }

 private:
  using Key = std::tuple<StageMessage::Kind, int, int>;
  static Key key(const StageMessage& message) {
    return {message.kind, message.target_stage, message.micro_batch};
  }

  std::map<Key, StageTensor> waiting_;
};

}  // namespace lockstep::inline internal
