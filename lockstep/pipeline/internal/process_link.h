#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/pipeline/internal/outbox.h"
#include "lockstep/pipeline/internal/receive_buffers.h"
#include "lockstep/pipeline/internal/stage_link.h"
#include "lockstep/pipeline/schedule.h"

namespace lockstep::inline internal {

/// Link between stages on the ranks of a group. A header of 512 bytes with shape and dtype precedes
/// each tensor, so that these may change between micro-batches; without a tensor only the header is
/// sent.
/// Threads: one.
/// Errors: PeerLost, TimeoutError and CommError of send and recv, with the message and the peer.
/// PeerFailed if the peer failed for another reason; PeerLost if it reports the loss of a third
/// rank of this pipeline or of a replica. UsageError if ranks have different numbers of
/// micro-batches, and for tensors of more than kMostDimensions. After an error the pipeline is
/// unusable.
class ProcessLink final : public StageLink {
 public:
  static constexpr int kMostDimensions = 10;

  ProcessLink(ProcessGroup group, int stages);
  ~ProcessLink() override;

  /// Begins a step of plan_pipeline()'s plans, or only their forward passes.
  void begin(PipelineSchedule schedule, const PipelineShape& shape);
  void send(const StageMessage& message, const StageTensor& sent) override;
  StageTensor receive(const StageMessage& message) override;
  /// Broadcasts the last rank's value to all ranks.
  double share_loss(double value);
  /// Returns when all messages are sent.
  void finish();
  /// Notifies the ranks that may wait for this one of its error. Does not wait.
  void give_up(const std::exception_ptr& error) noexcept;

 private:
  struct Header;

  int rank_of(int stage) const { return stage % group_.world_size(); }
  int tag_of(StageMessage::Kind kind, int target_stage) const;
  void expect_notices();
  void throw_notice_of(const std::string& operation, int peer);
  void throw_if_given_up(const Header& header, const std::string& operation);
  Header notice_of(const std::exception_ptr& error) const;
  std::string describe(const StageMessage& message, const char* verb, int peer) const;
  /// Position of a pass in the plan of its stage's rank.
  int& position(StageMessage::Kind kind, int stage, int micro_batch);
  void send_tensor(const at::Tensor& tensor, Outbox::Message message, int tag);
  void send_header(const Header& header, Outbox::Message message, int tag);
  Header receive_header(const std::string& operation, int peer, int tag);
  template <class Action>
  void with_peer(const std::string& operation, int peer, Action&& action);
  void check_sent();
  void check_micro_batches(const Header& header, int peer) const;

  ProcessGroup group_;
  int stages_;
  int loss_tag_;  // The first of this pipeline's own: one that failed leaves messages behind.
  int micro_batches_ = 0;
  std::vector<int> positions_;
  /// Error notices, by rank, whose receives are posted in advance: over gloo a message is sent only
  /// when it is awaited, and a rank that fails may end at once. Empty over other backends.
  std::vector<at::Tensor> notices_;
  std::vector<Work> notice_works_;
  ReceiveBuffers buffers_;
  Outbox outbox_;
  /// The notice that ends the pipeline, to be forwarded.
  std::unique_ptr<Header> notice_;
};

}  // namespace lockstep::inline internal
