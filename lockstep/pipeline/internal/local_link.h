#pragma once

#include <map>
#include <tuple>

#include "lockstep/base/internal/check.h"
#include "lockstep/pipeline/internal/stage_link.h"

namespace lockstep::inline internal {

/// Link between stages in one process; one thread runs their passes one after the other.
class LocalLink final : public StageLink {
 public:
  void send(const StageMessage& message, const StageTensor& sent) override {
    waiting_.insert_or_assign(key(message), sent);
  }
  /// The plan sends a message before it is received.
  StageTensor receive(const StageMessage& message) override {
    auto sent = waiting_.extract(key(message));
    LOCKSTEP_ASSERT(!sent.empty());
    return std::move(sent.mapped());
  }
  /// Discards the messages of a step that failed.
  void clear() { waiting_.clear(); }

 private:
  using Key = std::tuple<StageMessage::Kind, int, int>;
  static Key key(const StageMessage& message) {
    return {message.kind, message.target_stage, message.micro_batch};
  }

  std::map<Key, StageTensor> waiting_;
};

}  // namespace lockstep::inline internal
