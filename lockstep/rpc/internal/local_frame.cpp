#include "lockstep/rpc/internal/local_frame.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/kernels/copy_kernel.h"
#include "lockstep/os/socket/passed_fd.h"
#include "lockstep/rpc/internal/byte_stream.h"

namespace lockstep::rpc::inline internal {
namespace {

// Larger pieces are received where they belong, without a copy.
constexpr std::size_t kArrivals = std::size_t{64} << 10;
// What an error may take beside max_message_bytes.
constexpr std::size_t kSlack = std::size_t{64} << 10;
constexpr std::uint32_t kMostTensors = 1 << 16;
// Where a tensor's data are.
enum class Place : std::uint8_t {
  kSocket,    // they follow
  kBlock,     // in the block of this number
  kNewBlock,  // the same; the block's size follows, and its file comes beside the frame
};

// Element type, whether it requires a gradient, sizes; place, number and size of a block.
constexpr std::uint64_t kLongestDescription = 3 + 8 * kMostTensorDimensions + 17;
// What is larger than the caches is read by the receiver from memory: it need not go through ours.
constexpr std::uint64_t kLeastPastCaches = std::uint64_t{4} << 20;

bool is_carried(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && tensor.is_cpu() && is_sent(tensor.scalar_type()) &&
         tensor.dim() <= kMostTensorDimensions;
}

// Copies the tensor to a block; nothing where it is small, or no block is to be had.
std::optional<Loan> lend_block(const at::Tensor& tensor, LentBlocks& blocks) {
  std::shared_ptr<MemoryBlock> block = blocks.lend(tensor.nbytes());
  if (!block) return std::nullopt;
  std::optional<Loan> loan(std::in_place, block);
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) {
    lockstep::copy(block->data(), static_cast<const std::byte*>(tensor.const_data_ptr()),
                   tensor.nbytes(),
                   tensor.nbytes() < kLeastPastCaches ? Store::kOrdinary : Store::kNonTemporal);
  } else {
    at::from_blob(block->data(), tensor.sizes(), tensor.options().requires_grad(false))
        .copy_(tensor.detach());
  }
  return loan;
}

}  // namespace

std::optional<std::string> problem_of(const std::vector<at::Tensor>& tensors) {
  if (tensors.size() > kMostTensors) {
    return concat(tensors.size(), " tensors cannot be sent at once; ", kMostTensors, " can");
  }
  for (const at::Tensor& tensor : tensors) {
    if (is_carried(tensor)) continue;
    return concat("a tensor of ", tensor.toString(), " on ", tensor.device(),
                  " cannot be sent; move it to the CPU and dequantize it, or name its device in "
                  "device_maps");
  }
  return std::nullopt;
}

OutgoingFrame to_outgoing(Frame frame, LentBlocks* blocks) {
  if (const auto problem = problem_of(frame.parcel.tensors)) throw UsageError(*problem);
  OutgoingFrame outgoing{.kind = frame.kind, .id = frame.id};
  std::vector<char> description;
  ByteWriter writer(description);
  std::uint64_t data_bytes = 0;
  for (const at::Tensor& tensor : frame.parcel.tensors) {
    write_head(tensor, writer);
    data_bytes += tensor.nbytes();
    std::optional<Loan> loan;
    if (blocks != nullptr && outgoing.loans.size() < PassedFds::kMost) {
      loan = lend_block(tensor, *blocks);
    }
    if (!loan) {
      writer.put(Place::kSocket);
      outgoing.data.push_back(tensor.detach().resolve_conj().resolve_neg().contiguous());
      continue;
    }
    const bool is_new = loan->file().valid();
    writer.put(is_new ? Place::kNewBlock : Place::kBlock);
    writer.put(loan->block().number());
    if (is_new) writer.put(loan->block().bytes());
    outgoing.loans.push_back(*std::move(loan));
  }
  FrameReader::Head head{.kind = frame.kind,
                         .tensors = static_cast<std::uint32_t>(frame.parcel.tensors.size()),
                         .id = frame.id,
                         .description_bytes = description.size(),
                         .bytes = frame.parcel.bytes.size(),
                         .data_bytes = data_bytes};
  outgoing.head.resize(sizeof head);
  std::memcpy(outgoing.head.data(), &head, sizeof head);
  outgoing.head.insert(outgoing.head.end(), description.begin(), description.end());
  outgoing.bytes = std::move(frame.parcel.bytes);
  return outgoing;
}

FrameReader::FrameReader(std::size_t most_bytes) : most_bytes_(most_bytes), arrivals_(kArrivals) {}

std::span<char> FrameReader::next() {
  is_direct_ = piece_ < pieces_.size() && pieces_[piece_].size() - filled_ >= kArrivals;
  return is_direct_ ? pieces_[piece_].subspan(filled_) : std::span(arrivals_);
}

void FrameReader::advance(std::size_t count, const std::function<void(Frame)>& take) {
  if (is_direct_) {
    filled_ += count;
    go_on(take);
    return;
  }
  std::span<const char> rest(arrivals_.data(), count);
  const auto move_to = [&rest](char* target, std::size_t most) {
    const std::size_t now = std::min(most, rest.size());
    if (target != nullptr) std::memcpy(target, rest.data(), now);
    rest = rest.subspan(now);
    return now;
  };
  while (!rest.empty()) {
    if (head_filled_ < sizeof head_) {
      char* const head = reinterpret_cast<char*>(&head_);
      head_filled_ += move_to(head + head_filled_, sizeof head_ - head_filled_);
      if (head_filled_ == sizeof head_) begin();
    } else if (piece_ < pieces_.size()) {
      const std::span<char> piece = pieces_[piece_];
      filled_ += move_to(piece.data() + filled_, piece.size() - filled_);
    } else {
      to_throw_away_ -= move_to(nullptr, to_throw_away_);
    }
    go_on(take);
  }
}

// The head is here.
void FrameReader::begin() {
  constexpr std::uint64_t kSane = std::uint64_t{1} << 60;
  if (head_.kind > Frame::Kind::kDrop || head_.tensors > kMostTensors || head_.bytes > kSane ||
      head_.data_bytes > kSane || head_.description_bytes > head_.tensors * kLongestDescription) {
    throw UsageError("its header is invalid");
  }
  frame_ = {.kind = head_.kind, .id = head_.id};
  if (head_.bytes + head_.data_bytes > most_bytes_ + kSlack) {
    frame_.discarded_bytes = head_.bytes + head_.data_bytes;
  }
  description_.clear();
  pieces_.resize(frame_.discarded_bytes > 0 ? 1 : 2);
  for (std::size_t piece = 0; piece < pieces_.size(); ++piece) grow(piece);
}

// The description and the bytes, as far as there is space for: a head alone is no reason to take
// the gigabytes that it announces. (Of tensors, pages are taken when they are written.)
bool FrameReader::grow(std::size_t piece) {
  std::vector<char>& bytes = piece == 0 ? description_ : frame_.parcel.bytes;
  const std::uint64_t wanted = piece == 0 ? head_.description_bytes : head_.bytes;
  if (bytes.size() == wanted) return false;
  bytes.resize(std::min<std::uint64_t>(wanted, std::max(kArrivals, 2 * bytes.size())));
  pieces_[piece] = bytes;
  return true;
}

// What is complete is left behind; a frame that is whole is given away.
void FrameReader::go_on(const std::function<void(Frame)>& take) {
  if (head_filled_ < sizeof head_) return;
  while (piece_ < pieces_.size() && filled_ == pieces_[piece_].size()) {
    if (piece_ < 2 && grow(piece_)) continue;
    ++piece_;
    filled_ = 0;
    if (piece_ == 1) describe();
  }
  if (piece_ < pieces_.size() || to_throw_away_ > 0) return;
  Frame whole = finish();
  if (whole.kind == Frame::Kind::kDrop) {
    blocks_.drop(static_cast<std::uint64_t>(whole.id));
  } else {
    take(std::move(whole));
  }
}

// The description is here: of a frame that is thrown away it says what goes through the socket, and
// gives back its blocks.
void FrameReader::describe() {
  const c10::InferenceMode as_ever(false);  // Whatever thread this is.
  ByteReader description({description_.data(), description_.size()});
  const bool is_kept = frame_.discarded_bytes == 0;
  std::uint64_t described = 0;
  std::uint64_t in_socket = 0;
  for (std::uint32_t i = 0; i < head_.tensors; ++i) {
    const TensorHead head = read_head(description);
    if (head.size_bytes > head_.data_bytes - described) {
      throw UsageError("it has less data than its tensors");
    }
    described += head.size_bytes;
    auto block = read_block(description, head.size_bytes);
    if (!block) in_socket += head.size_bytes;
    if (!is_kept) {
      if (block) block->give_back();
      continue;
    }
    at::Tensor tensor =
        block ? head.make(block->data(), [block] { block->give_back(); }) : head.make();
    if (!block)
      pieces_.emplace_back(static_cast<char*>(tensor.mutable_data_ptr()), tensor.nbytes());
    frame_.parcel.tensors.push_back(std::move(tensor));
  }
  if (description.left() > 0 || described != head_.data_bytes) {
    throw UsageError("its description does not match its data");
  }
  if (!is_kept) to_throw_away_ = head_.bytes + in_socket;
}

// Null: the data come through the socket.
std::shared_ptr<MemoryBlock> FrameReader::read_block(ByteReader& description, std::uint64_t bytes) {
  const auto place = description.take<Place>();
  if (place == Place::kSocket) return nullptr;
  const auto number = description.take<std::uint64_t>();
  if (place == Place::kNewBlock) {
    const auto block_bytes = description.take<std::uint64_t>();
    if (files_.empty()) throw UsageError("it passes memory without its file");
    blocks_.add(number, block_bytes, std::move(files_.front()));
    files_.pop_front();
  } else if (place != Place::kBlock) {
    throw UsageError("the location of its data is invalid");
  }
  return blocks_.at(number, bytes);
}

Frame FrameReader::finish() {
  pieces_.clear();
  piece_ = filled_ = head_filled_ = 0;
  return std::exchange(frame_, {});
}

}  // namespace lockstep::rpc::inline internal
