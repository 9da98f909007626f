#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/os/files/unique_fd.h"
#include "lockstep/rpc/internal/call_message.h"
#include "lockstep/rpc/internal/passed_memory.h"

namespace lockstep::rpc::inline internal {

/// A message between two workers of one machine, as sent through a socket: a header of fixed size,
/// a description of the tensors, the parcel's bytes, and the data of tensors that are not passed in
/// memory blocks. Descriptors of new blocks accompany its first byte, in order.
struct Frame {
  enum class Kind : std::uint32_t {
    kRequest,
    kAnswer,
    kFailure,  ///< there is no reply: the bytes say why
    kLoss,     ///< the sender has lost a worker; `id` is its rank
    kDrop,     ///< a memory block will not be used again; `id` is its number
  };

  Kind kind = Kind::kRequest;
  std::int64_t id = 0;  ///< of a request and its reply
  MessageData parcel = {};
  /// Above 0: size of a frame that was too large and has been discarded.
  std::size_t discarded_bytes = 0;
};

/// A frame that is being sent. It keeps the tensors in `data`, which must not change meanwhile.
struct OutgoingFrame {
  Frame::Kind kind = Frame::Kind::kRequest;
  std::int64_t id = 0;
  std::vector<char> head = {};  ///< header and description
  std::vector<char> bytes = {};
  std::vector<at::Tensor> data = {};  ///< contiguous
  std::vector<Loan> loans = {};       ///< tensors that are passed in blocks
  std::size_t sent = 0;
};

/// Why tensors cannot be sent through a socket; nullopt if they can: dense, on the CPU, not
/// quantized. (Sparse tensors are sent as their parts.)
std::optional<std::string> problem_of(const std::vector<at::Tensor>& tensors);

/// Serializes a frame; copies large tensors to blocks, if these are available.
/// Errors: UsageError for tensors that have a problem.
OutgoingFrame to_outgoing(Frame frame, LentBlocks* blocks = nullptr);

/// Assembles frames from received bytes, in pieces of any size. For n received bytes it allocates
/// at most 1 MiB + 4 · n for description and bytes, and the tensors that n bytes describe, whatever
/// the header of a frame announces.
/// Threads: one.
class FrameReader {
 public:
  /// Discards frames of more than `most_bytes` (bytes and tensors) as they arrive.
  explicit FrameReader(std::size_t most_bytes);

  /// Where to write the next bytes; never empty.
  std::span<char> next();
  /// The descriptor of a block; it arrives with the next bytes or before them.
  void add_file(UniqueFd file) { files_.push_back(std::move(file)); }
  /// Tells how many bytes were written there; passes each complete frame to `take`.
  /// Errors: UsageError for an invalid frame; SystemError for a block that cannot be mapped. After
  /// an error nothing further can be read.
  void advance(std::size_t count, const std::function<void(Frame)>& take);

 private:
  struct Head {
    Frame::Kind kind;
    std::uint32_t tensors;
    std::int64_t id;
    std::uint64_t description_bytes;
    std::uint64_t bytes;
    std::uint64_t data_bytes;  ///< of all tensors
  };
  friend OutgoingFrame to_outgoing(Frame frame, LentBlocks* blocks);

  void begin();
  bool grow(std::size_t piece);
  void describe();
  std::shared_ptr<MemoryBlock> read_block(ByteReader& description, std::uint64_t bytes);
  void go_on(const std::function<void(Frame)>& take);
  Frame finish();

  const std::size_t most_bytes_;
  std::vector<char> arrivals_;  ///< buffer for bytes whose place is not yet known
  Head head_{};
  std::size_t head_filled_ = 0;
  std::size_t to_throw_away_ = 0;
  std::vector<char> description_;
  std::deque<UniqueFd> files_;  ///< not yet named by a frame
  BorrowedBlocks blocks_;
  Frame frame_;
  std::vector<std::span<char>> pieces_;  ///< of the frame, filled in this order
  std::size_t piece_ = 0;
  std::size_t filled_ = 0;  ///< of the piece
  bool is_direct_ = false;  ///< next() gave the piece itself
};

}  // namespace lockstep::rpc::inline internal
