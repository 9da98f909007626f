#include "lockstep/pipeline/internal/process_link.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/agreement.h"

namespace lockstep::inline internal {

struct ProcessLink::Header {
  // kLost: a rank of this pipeline is gone; kLostReplica: one has lost a replica.
  enum Kind : std::int64_t { kTensor, kNoTensor, kLoss, kLost, kLostReplica, kFailed };
  std::int64_t kind = kTensor;
  std::int64_t micro_batches = 0;
  std::int64_t value = 0;  // the loss's bits, or the rank that a notice is about
  std::int64_t requires_grad = 0;
  std::int64_t dtype = 0;
  std::int64_t dimensions = 0;
  std::array<std::int64_t, kMostDimensions> sizes{};
  std::array<char, 384> reason{};  // of a notice, ends with a 0
};

namespace {

// Far from the tags that programs choose.
constexpr int kFirstTag = 0x10'C500;
// Pipelines of one group, before tags come again, and tags of one.
constexpr std::uint64_t kMostPipelines = 1 << 10;
constexpr int kTagsOfOne = 1 << 12;
constexpr int kNotice = kTagsOfOne - 1;

bool moves_by_looks(const ProcessGroup& group) {
  return group.backend_name() == "shm" || group.backend_name() == "hierarchical";
}

}  // namespace

ProcessLink::ProcessLink(ProcessGroup group, int stages)
    : group_(std::move(group)),
      stages_(stages),
      loss_tag_(kFirstTag + kTagsOfOne * static_cast<int>(count_replica(group_) % kMostPipelines)),
      buffers_(group_.device()),
      outbox_(moves_by_looks(group_)) {
  if (tag_of(StageMessage::Kind::kGradients, stages_ - 1) >= loss_tag_ + kNotice) {
    throw UsageError(concat("make a pipeline: ", stages_, " stages; at most ", kNotice / 2,
                            " between processes"));
  }
  if (group_.backend_name() == "gloo") expect_notices();
}

ProcessLink::~ProcessLink() = default;

void ProcessLink::expect_notices() {
  const auto bytes = static_cast<std::int64_t>(sizeof(Header));
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    notices_.push_back(at::zeros({bytes}, at::kByte));
    if (peer == group_.rank()) continue;
    notice_works_.push_back(
        group_.recv(notices_.back(), peer, loss_tag_ + kNotice, {.async_op = true}));
  }
}

// Before its connection closes a peer that gave up has said so: what it said is there by then.
void ProcessLink::throw_notice_of(const std::string& operation, int peer) {
  if (notices_.empty() || peer == group_.rank()) return;
  Header header;
  std::memcpy(&header, notices_[static_cast<std::size_t>(peer)].const_data_ptr(), sizeof header);
  throw_if_given_up(header, operation);
}

int ProcessLink::tag_of(StageMessage::Kind kind, int target_stage) const {
  return loss_tag_ + 1 + 2 * target_stage + (kind == StageMessage::Kind::kGradients ? 1 : 0);
}

void ProcessLink::begin(PipelineSchedule schedule, const PipelineShape& shape) {
  if (micro_batches_ == shape.micro_batches) return;
  micro_batches_ = shape.micro_batches;
  positions_.resize(static_cast<std::size_t>(2 * stages_ * micro_batches_));
  for (int rank = 0; rank < shape.ranks; ++rank) {
    int number = 0;
    for (const auto& [kind, micro_batch, chunk] : plan_pipeline(schedule, shape, rank)) {
      const auto of_messages = kind == PipelineAction::Kind::kForward
                                   ? StageMessage::Kind::kActivations
                                   : StageMessage::Kind::kGradients;
      position(of_messages, chunk * shape.ranks + rank, micro_batch) = number++;
    }
  }
}

int& ProcessLink::position(StageMessage::Kind kind, int stage, int micro_batch) {
  const int of_kind = kind == StageMessage::Kind::kGradients ? stages_ : 0;
  return positions_[static_cast<std::size_t>((of_kind + stage) * micro_batches_ + micro_batch)];
}

void ProcessLink::send(const StageMessage& message, const StageTensor& sent) {
  const at::Tensor& tensor = sent.tensor;
  Header header{.kind = tensor.defined() ? Header::kTensor : Header::kNoTensor,
                .micro_batches = micro_batches_,
                .requires_grad = sent.requires_grad};
  if (tensor.defined()) {
    if (tensor.dim() > kMostDimensions) {
      throw UsageError(concat("pipeline: stage ", message.source_stage(), " sends a tensor of ",
                              tensor.dim(), " dimensions; ", kMostDimensions, " are the most"));
    }
    header.dtype = static_cast<std::int64_t>(tensor.scalar_type());
    header.dimensions = tensor.dim();
    std::ranges::copy(tensor.sizes(), header.sizes.begin());
  }
  const int peer = rank_of(message.target_stage);
  const int tag = tag_of(message.kind, message.target_stage);
  const std::string operation = describe(message, "sends", peer);
  check_sent();
  Outbox::Message under_way{
      .work = {},
      .operation = operation,
      .peer = peer,
      .taken_at = position(message.kind, message.target_stage, message.micro_batch)};
  send_header(header, under_way, tag);
  if (tensor.defined()) send_tensor(tensor, under_way, tag);
}

StageTensor ProcessLink::receive(const StageMessage& message) {
  const int peer = rank_of(message.source_stage());
  const int tag = tag_of(message.kind, message.target_stage);
  const std::string operation = describe(message, "waits for", peer);
  check_sent();
  const Header header = receive_header(operation, peer, tag);
  check_micro_batches(header, peer);
  at::Tensor tensor;
  if (header.kind == Header::kTensor) {
    tensor = buffers_.take({header.sizes.data(), static_cast<std::size_t>(header.dimensions)},
                           static_cast<at::ScalarType>(header.dtype));
    with_peer(operation, peer, [&] { group_.recv(tensor, peer, tag); });
  }
  outbox_.forget_taken(peer, position(message.kind, message.source_stage(), message.micro_batch));
  return {.tensor = std::move(tensor), .requires_grad = header.requires_grad != 0};
}

double ProcessLink::share_loss(double value) {
  const int last = group_.world_size() - 1;
  if (group_.rank() != last) {
    const std::string operation =
        concat("pipeline: rank ", group_.rank(), " waits for the loss from rank ", last);
    return std::bit_cast<double>(receive_header(operation, last, loss_tag_).value);
  }
  const Header header{.kind = Header::kLoss, .value = std::bit_cast<std::int64_t>(value)};
  for (int peer = 0; peer < last; ++peer) {
    send_header(header,
                {.work = {},
                 .operation = concat("pipeline: rank ", last, " sends the loss to rank ", peer),
                 .peer = peer},
                loss_tag_);
  }
  return value;
}

void ProcessLink::finish() {
  outbox_.finish();
  check_sent();
}

void ProcessLink::give_up(const std::exception_ptr& error) noexcept {
  const Header header = notice_ ? *notice_ : notice_of(error);
  const auto tell = [&](int peer, int tag) {
    if (peer == header.value) return;
    try {
      send_header(header, {.work = {}, .operation = {}, .peer = peer}, tag);
    } catch (...) {  // It is gone, too, or learns of it by itself.
    }
  };
  for (int stage = group_.rank(); stage < stages_; stage += group_.world_size()) {
    using Kind = StageMessage::Kind;
    if (stage > 0) tell(rank_of(stage - 1), tag_of(Kind::kGradients, stage - 1));
    if (stage < stages_ - 1) tell(rank_of(stage + 1), tag_of(Kind::kActivations, stage + 1));
  }
  for (int peer = 0; peer < group_.world_size(); ++peer) {
    if (peer == group_.rank()) continue;
    if (!notices_.empty()) tell(peer, loss_tag_ + kNotice);
    if (group_.rank() == group_.world_size() - 1) tell(peer, loss_tag_);
  }
}

std::string ProcessLink::describe(const StageMessage& message, const char* verb, int peer) const {
  return concat("pipeline: rank ", group_.rank(), " ", verb, " the ",
                message.kind == StageMessage::Kind::kActivations ? "activations" : "gradients",
                " of micro-batch ", message.micro_batch,
                verb == std::string_view("sends") ? " to" : " from", " rank ", peer);
}

void ProcessLink::send_tensor(const at::Tensor& tensor, Outbox::Message message, int tag) {
  with_peer(message.operation, message.peer, [&] {
    message.work = group_.send(tensor, message.peer, tag, {.async_op = true});
    outbox_.add(std::move(message));
  });
}

void ProcessLink::send_header(const Header& header, Outbox::Message message, int tag) {
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(sizeof header)}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), &header, sizeof header);
  send_tensor(bytes.to(group_.device()), std::move(message), tag);
}

ProcessLink::Header ProcessLink::receive_header(const std::string& operation, int peer, int tag) {
  const at::Tensor received = at::empty({static_cast<std::int64_t>(sizeof(Header))},
                                        at::TensorOptions(at::kByte).device(group_.device()));
  with_peer(operation, peer, [&] { group_.recv(received, peer, tag); });
  Header header;
  std::memcpy(&header, received.cpu().const_data_ptr(), sizeof header);
  throw_if_given_up(header, operation);
  return header;
}

void ProcessLink::throw_if_given_up(const Header& header, const std::string& operation) {
  if (header.kind <= Header::kLoss) return;
  notice_ = std::make_unique<Header>(header);
  notice_->reason.back() = '\0';
  const char* const reason = notice_->reason.data();
  ErrorFields fields{.operation = operation,
                     .group = group_.name(),
                     .own_rank = group_.rank(),
                     .ranks = {static_cast<int>(header.value)}};
  switch (header.kind) {
    case Header::kLost:
      throw PeerLost(concat(operation, ": rank ", header.value, " failed; see its log"), fields);
    case Header::kLostReplica:
      fields.ranks.clear();  // It has no number in this group.
      throw PeerLost(
          concat(operation, ": rank ", header.value, " lost a replica of its stage: ", reason),
          fields);
    default:
      throw PeerFailed(concat(operation, ": rank ", header.value, " aborted the step: ", reason),
                       fields);
  }
}

// Of an error that begins on this rank.
ProcessLink::Header ProcessLink::notice_of(const std::exception_ptr& error) const {
  Header notice{.kind = Header::kFailed, .value = group_.rank()};
  const auto take_reason = [&](const std::exception& thrown) {
    const std::string_view reason = thrown.what();
    std::ranges::copy(reason.substr(0, notice.reason.size() - 1), notice.reason.begin());
  };
  try {
    std::rethrow_exception(error);
  } catch (const PeerLost& lost) {
    notice.kind = Header::kLostReplica;
    take_reason(lost);
  } catch (const std::exception& thrown) {
    take_reason(thrown);
  } catch (...) {  // It says nothing.
  }
  return notice;
}

// Runs an action that needs a peer; its errors have the operation before them.
template <class Action>
void ProcessLink::with_peer(const std::string& operation, int peer, Action&& action) {
  try {
    action();
  } catch (const PeerLost& error) {
    throw_notice_of(operation, peer);
    notice_ = std::make_unique<Header>(Header{.kind = Header::kLost, .value = peer});
    throw PeerLost(concat(operation, ": ", error.what()), error.fields());
  } catch (const TimeoutError& error) {
    throw TimeoutError(concat(operation, ": ", error.what()), error.fields());
  } catch (const CommError& error) {
    throw CommError(concat(operation, ": ", error.what()), error.fields());
  }
}

void ProcessLink::check_sent() {
  const auto failure = outbox_.take_failure();
  if (!failure) return;
  with_peer(failure->operation, failure->peer, [&] { std::rethrow_exception(failure->error); });
}

void ProcessLink::check_micro_batches(const Header& header, int peer) const {
  if (header.micro_batches == micro_batches_) return;
  throw UsageError(concat("pipeline: rank ", peer, " divides the batch into ", header.micro_batches,
                          " micro-batches, rank ", group_.rank(), " into ", micro_batches_,
                          "; all ranks give batches of one size"));
}

}  // namespace lockstep::inline internal
