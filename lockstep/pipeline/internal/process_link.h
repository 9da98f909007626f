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

/// Stages on the ranks of a group. Before each tensor goes a header of 512 bytes with its shape and
/// dtype, so that they may change from one micro-batch to the next; alone where there is no tensor.
/// Threads: one. Errors: PeerLost, TimeoutError and CommError as of send and recv, with what was
/// under way and the peer; PeerFailed where that gave up for another reason; PeerLost where it
/// tells of a third that is gone, of this pipeline or of a replica; UsageError where ranks have
/// other numbers of micro-batches, and for tensors of more than kMostDimensions. After any the
/// pipeline is of no further use.
class ProcessLink final : public StageLink {
 public:
  static constexpr int kMostDimensions = 10;

  ProcessLink(ProcessGroup group, int stages);
  ~ProcessLink() override;

  /// Of a step by plan_pipeline's plans, or their forward passes alone.
  void begin(PipelineSchedule schedule, const PipelineShape& shape);
  void send(const StageMessage& message, const StageTensor& sent) override;
  StageTensor receive(const StageMessage& message) override;
  /// The last rank's value, on all; the others' is not looked at.
  double share_loss(double value);
  /// Returns when all has been sent.
  void finish();
  /// Tells those who may wait for this rank that nothing comes any more, and why: what is thrown
  /// here. Waits for nobody.
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
  /// Where it lies in the plan of its stage's rank.
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
  /// Of each rank what it says when it gives up, received ahead: over gloo a message goes only once
  /// it is waited for, and who gives up may end at once. Empty over other backends.
  std::vector<at::Tensor> notices_;
  std::vector<Work> notice_works_;
  ReceiveBuffers buffers_;
  Outbox outbox_;
  /// What ends the pipeline as others have said it, to be passed on.
  std::unique_ptr<Header> notice_;
};

}  // namespace lockstep::inline internal
