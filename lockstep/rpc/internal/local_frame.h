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

/// A message between two workers of one machine, as it goes through a socket: a head of fixed size,
/// a description of the tensors, the parcel's bytes, and the data of those tensors that are not
/// passed in blocks of memory. The files of new blocks come beside its first byte, in order.
struct Frame {
  enum class Kind : std::uint32_t {
    kRequest,
    kAnswer,
    kFailure,  ///< no answer can be given: the bytes say why
    kLoss,     ///< the sender has lost a worker; its rank in the place of `id`
    kDrop,     ///< a block of memory will not be used again; its number in the place of `id`
  };

  Kind kind = Kind::kRequest;
  std::int64_t id = 0;  ///< of a request, and of its answer
  Parcel parcel = {};
  /// More than 0: it was larger than may come, and has been thrown away.
  std::size_t thrown_away_bytes = 0;
};

/// A frame that is being sent. Keeps the tensors in `data`, which must not change meanwhile.
struct OutgoingFrame {
  Frame::Kind kind = Frame::Kind::kRequest;
  std::int64_t id = 0;
  std::vector<char> head = {};  ///< with the description
  std::vector<char> bytes = {};
  std::vector<at::Tensor> data = {};  ///< contiguous
  std::vector<Loan> loans = {};       ///< the tensors that are passed in blocks
  std::size_t sent = 0;
};

/// Why tensors cannot go through a socket; nothing where they can: dense ones on the CPU, of
/// numbers that are not quantized. (Sparse ones are sent as their parts.)
std::optional<std::string> problem_of(const std::vector<at::Tensor>& tensors);

/// Copies large tensors to blocks, where these are given and to be had. Errors: UsageError for
/// tensors that have a problem.
OutgoingFrame to_outgoing(Frame frame, LentBlocks* blocks = nullptr);

/// Puts frames together from what arrives, in whatever pieces. Of n bytes that have arrived it
/// makes at most 1 MiB + 4 · n of description and bytes, and the tensors that n bytes describe;
/// whatever the head of a frame announces. Threads: one.
class FrameReader {
 public:
  /// Frames of more than `most_bytes` (bytes and tensors) are thrown away as they come.
  explicit FrameReader(std::size_t most_bytes);

  /// Where the next bytes are to be written; never empty.
  std::span<char> next();
  /// The file of a block, which has come with the next bytes or before them.
  void add_file(UniqueFd file) { files_.push_back(std::move(file)); }
  /// That so many have been written there. Gives each frame that is whole to `take`. Errors:
  /// UsageError for what is no frame; SystemError for a block that cannot be mapped; nothing that
  /// follows can be read.
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
  std::vector<char> arrivals_;  ///< what comes first, whosever it is
  Head head_{};
  std::size_t head_filled_ = 0;
  std::size_t to_throw_away_ = 0;
  std::vector<char> description_;
  std::deque<UniqueFd> files_;  ///< that no frame has named yet
  BorrowedBlocks blocks_;
  Frame frame_;
  std::vector<std::span<char>> pieces_;  ///< of the frame, to be filled in this order
  std::size_t piece_ = 0;
  std::size_t filled_ = 0;  ///< of the piece
  bool is_direct_ = false;  ///< next() gave the piece itself
};

}  // namespace lockstep::rpc::inline internal
