#include "lockstep/rpc/internal/local_frame.h"

#include <cstring>
#include <random>
#include <stdexcept>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/memory_limit_testing.h"

namespace lockstep::rpc {
namespace {

constexpr std::size_t kLargestFrame = std::size_t{1} << 30;

std::vector<char> bytes_of(Frame frame) {
  const OutgoingFrame outgoing = to_outgoing(std::move(frame));
  std::vector<char> bytes = outgoing.head;
  bytes.insert(bytes.end(), outgoing.bytes.begin(), outgoing.bytes.end());
  for (const at::Tensor& tensor : outgoing.data) {
    const auto* const data = static_cast<const char*>(tensor.const_data_ptr());
    bytes.insert(bytes.end(), data, data + tensor.nbytes());
  }
  return bytes;
}

// The frames in some bytes that come `at_once` by `at_once`.
std::vector<Frame> frames_in(const std::vector<char>& bytes, std::size_t at_once,
                             std::size_t most_bytes = kLargestFrame) {
  FrameReader reader(most_bytes);
  std::vector<Frame> frames;
  for (std::size_t offset = 0; offset < bytes.size();) {
    const std::span<char> room = reader.next();
    const std::size_t now = std::min({at_once, room.size(), bytes.size() - offset});
    std::memcpy(room.data(), bytes.data() + offset, now);
    offset += now;
    reader.advance(now, [&](Frame frame) { frames.push_back(std::move(frame)); });
  }
  return frames;
}

std::vector<at::Tensor> many_tensors() {
  return {at::empty({0}),
          at::full({}, 7),
          at::arange(13, at::kInt),
          at::arange(12, at::kDouble).view({3, 4}).t(),
          at::ones({3, 0, 2}, at::kBool),
          at::ones({2}, at::kBFloat16).requires_grad_(),
          at::complex(at::ones({2}), at::full({2}, 3.0)).conj(),
          at::arange(100'003, at::kFloat)};
}

void expect_same(const at::Tensor& ours, const at::Tensor& theirs) {
  ASSERT_EQ(ours.sizes(), theirs.sizes());
  ASSERT_EQ(ours.scalar_type(), theirs.scalar_type());
  EXPECT_EQ(ours.requires_grad(), theirs.requires_grad());
  EXPECT_TRUE(at::equal(ours, theirs));
}

TEST(LocalFrame, ArrivesInWhateverPieces) {
  const std::string text = "what is said";
  std::vector<char> bytes;
  for (int i = 0; i < 3; ++i) {
    const auto more = bytes_of({.kind = i == 1 ? Frame::Kind::kAnswer : Frame::Kind::kRequest,
                                .id = i,
                                .parcel = {{text.begin(), text.end()}, many_tensors()}});
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  const auto empty = bytes_of({.kind = Frame::Kind::kFailure, .id = 3});
  bytes.insert(bytes.end(), empty.begin(), empty.end());
  for (const std::size_t at_once :
       {std::size_t{1}, std::size_t{7}, std::size_t{4096}, kLargestFrame}) {
    const auto frames = frames_in(bytes, at_once);
    ASSERT_EQ(frames.size(), 4U);
    for (int i = 0; i < 3; ++i) {
      const Frame& frame = frames[static_cast<std::size_t>(i)];
      EXPECT_EQ(frame.kind, i == 1 ? Frame::Kind::kAnswer : Frame::Kind::kRequest);
      EXPECT_EQ(frame.id, i);
      EXPECT_EQ(std::string(frame.parcel.bytes.begin(), frame.parcel.bytes.end()), text);
      const auto expected = many_tensors();
      ASSERT_EQ(frame.parcel.tensors.size(), expected.size());
      for (std::size_t k = 0; k < expected.size(); ++k)
        expect_same(frame.parcel.tensors[k], expected[k]);
    }
    EXPECT_EQ(frames[3].kind, Frame::Kind::kFailure);
    EXPECT_TRUE(frames[3].parcel.bytes.empty());
  }
}

TEST(LocalFrame, TensorsOfEveryTypeAreReadOrRefused) {
  std::vector<char> bytes = bytes_of(
      {.kind = Frame::Kind::kRequest, .parcel = {.bytes = {}, .tensors = {at::zeros({0})}}});
  constexpr std::size_t kHeadBytes = 40;
  int read = 0;
  for (int type = 0; type < 256; ++type) {
    bytes[kHeadBytes] = static_cast<char>(type);
    try {
      read += static_cast<int>(frames_in(bytes, bytes.size()).size());
    } catch (const UsageError&) {
    }
  }
  EXPECT_GE(read, 20);
  EXPECT_LT(read, 30);
}

// The head of a frame of the most that may come, and no more of it.
TEST(LocalFrame, TakesNoMemoryForWhatIsOnlyAnnounced) {
  std::vector<char> head = bytes_of({.kind = Frame::Kind::kRequest, .id = 1});
  const std::uint32_t tensors = 1 << 16;
  const std::uint64_t description_bytes = tensors * 500;
  const std::uint64_t bytes = kLargestFrame;
  std::memcpy(head.data() + 4, &tensors, sizeof tensors);
  std::memcpy(head.data() + 16, &description_bytes, sizeof description_bytes);
  std::memcpy(head.data() + 24, &bytes, sizeof bytes);
  EXPECT_TRUE(fits_in(1 << 20, [&] {
    if (!frames_in(head, head.size()).empty()) throw std::logic_error("a frame of nothing");
  }));
}

TEST(LocalFrame, GrowsWithWhatArrives) {
  Frame frame{.kind = Frame::Kind::kAnswer, .id = 7};
  for (std::size_t i = 0; i < 1'000'003; ++i) frame.parcel.bytes.push_back(static_cast<char>(i));
  for (std::size_t i = 0; i < 20'000; ++i) frame.parcel.tensors.push_back(at::full({1}, 1.0 * i));
  const std::vector<char> expected = frame.parcel.bytes;
  const std::vector<char> bytes = bytes_of(std::move(frame));
  for (const std::size_t at_once : {std::size_t{1'000}, std::size_t{65'537}, bytes.size()}) {
    const std::vector<Frame> frames = frames_in(bytes, at_once);
    ASSERT_EQ(frames.size(), 1u);
    EXPECT_EQ(frames[0].parcel.bytes, expected);
    ASSERT_EQ(frames[0].parcel.tensors.size(), 20'000u);
    EXPECT_EQ(frames[0].parcel.tensors.back().item<float>(), 19'999.0f);
  }
}

TEST(LocalFrame, WhatIsTooLargeIsThrownAway) {
  auto bytes = bytes_of({.id = 1, .parcel = {{}, {at::ones({100'000}, at::kByte)}}});
  const auto next = bytes_of({.id = 2, .parcel = {{'x'}, {at::ones({3})}}});
  bytes.insert(bytes.end(), next.begin(), next.end());
  for (const std::size_t at_once : {std::size_t{7}, kLargestFrame}) {
    const auto frames = frames_in(bytes, at_once, 1000);
    ASSERT_EQ(frames.size(), 2U);
    EXPECT_EQ(frames[0].id, 1);
    EXPECT_EQ(frames[0].discarded_bytes, 100'000U);
    EXPECT_TRUE(frames[0].parcel.tensors.empty());
    EXPECT_EQ(frames[1].discarded_bytes, 0U);
    expect_same(frames[1].parcel.tensors.at(0), at::ones({3}));
  }
}

TEST(LocalFrame, AnyBytesAreRefusedOrRead) {
  const auto whole =
      bytes_of({.id = 1, .parcel = {{'a', 'b'}, {at::ones({3, 5}), at::arange(7), at::ones({0})}}});
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<char> bytes = whole;
    // Most of what matters is at the beginning.
    const std::size_t most = i % 2 == 0 ? std::min<std::size_t>(bytes.size(), 160) : bytes.size();
    for (int flips = 1 + i % 3; flips > 0; --flips) {
      bytes[random() % most] = static_cast<char>(random());
    }
    try {
      frames_in(bytes, kLargestFrame, 1 << 16);
    } catch (const std::exception&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

// Of tensors that are passed in blocks only their places go through the socket.
struct Passed {
  explicit Passed(const std::vector<at::Tensor>& tensors, LentBlocks& blocks, std::int64_t id = 0) {
    OutgoingFrame outgoing = to_outgoing({.id = id, .parcel = {{'x'}, tensors}}, &blocks);
    bytes = outgoing.head;
    bytes.insert(bytes.end(), outgoing.bytes.begin(), outgoing.bytes.end());
    for (const at::Tensor& tensor : outgoing.data) {
      const auto* const data = static_cast<const char*>(tensor.const_data_ptr());
      bytes.insert(bytes.end(), data, data + tensor.nbytes());
    }
    for (Loan& loan : outgoing.loans) {
      if (loan.file().valid()) files.emplace_back(::dup(loan.file().get()));
      loan.hand_over();
    }
  }

  std::vector<Frame> read_by(FrameReader& reader) {
    for (UniqueFd& file : files) reader.add_file(std::move(file));
    std::vector<Frame> frames;
    for (std::size_t offset = 0; offset < bytes.size();) {
      const std::span<char> room = reader.next();
      const std::size_t now = std::min(room.size(), bytes.size() - offset);
      std::memcpy(room.data(), bytes.data() + offset, now);
      offset += now;
      reader.advance(now, [&](Frame frame) { frames.push_back(std::move(frame)); });
    }
    return frames;
  }

  std::vector<char> bytes;
  std::vector<UniqueFd> files;
};

constexpr LentBlocks::Limits kSmallOnesToo{.least_bytes = 8};

TEST(LocalFrame, TensorsArePassedInBlocks) {
  LentBlocks blocks(kSmallOnesToo);
  FrameReader reader(kLargestFrame);
  for (int turn = 0; turn < 3; ++turn) {
    Passed passed(many_tensors(), blocks);
    EXPECT_LT(passed.bytes.size(), 2000U);
    EXPECT_EQ(passed.files.empty(), turn > 0) << "blocks are used again";
    const auto frames = passed.read_by(reader);
    ASSERT_EQ(frames.size(), 1U);
    const auto expected = many_tensors();
    ASSERT_EQ(frames[0].parcel.tensors.size(), expected.size());
    for (std::size_t k = 0; k < expected.size(); ++k) {
      expect_same(frames[0].parcel.tensors[k], expected[k]);
    }
  }
}

TEST(LocalFrame, APassedTensorMayGrow) {
  LentBlocks blocks(kSmallOnesToo);
  FrameReader reader(kLargestFrame);
  Passed first({at::ones({4096})}, blocks);
  at::Tensor tensor = first.read_by(reader).at(0).parcel.tensors.at(0);
  tensor.resize_({1'000'000});
  EXPECT_TRUE(at::equal(tensor.narrow(0, 0, 4096), at::ones({4096})));
  EXPECT_TRUE(Passed({at::ones({4096})}, blocks).files.empty()) << "its block is free";
}

TEST(LocalFrame, WhatIsTooLargeGivesItsBlocksBack) {
  LentBlocks blocks(kSmallOnesToo);
  FrameReader reader(1000);
  for (int turn = 0; turn < 3; ++turn) {
    Passed large({at::ones({100'000}, at::kByte), at::ones({7}, at::kByte)}, blocks, turn);
    EXPECT_EQ(large.files.empty(), turn > 0);
    const auto frames = large.read_by(reader);
    ASSERT_EQ(frames.size(), 1U);
    EXPECT_EQ(frames[0].id, turn);
    EXPECT_EQ(frames[0].discarded_bytes, 100'008U);
  }
  const auto next = Passed({at::ones({3})}, blocks).read_by(reader);
  ASSERT_EQ(next.size(), 1U);
  expect_same(next[0].parcel.tensors.at(0), at::ones({3}));
}

TEST(LocalFrame, BlocksThatAreNotThereAreRefused) {
  LentBlocks blocks(kSmallOnesToo);
  {
    FrameReader reader(kLargestFrame);
    Passed passed({at::ones({100})}, blocks);
    passed.files.clear();
    EXPECT_THROW(passed.read_by(reader), UsageError);
  }
  {
    FrameReader reader(kLargestFrame);
    FrameReader other(kLargestFrame);
    Passed({at::ones({100})}, blocks).read_by(other);
    EXPECT_THROW(Passed({at::ones({100})}, blocks).read_by(reader), UsageError) << "lent to other";
  }
  {
    FrameReader reader(kLargestFrame);
    Passed passed({at::ones({200'000})}, blocks);
    ASSERT_EQ(passed.files.size(), 1U);
    ASSERT_EQ(::ftruncate(passed.files[0].get(), 4096), 0);
    EXPECT_THROW(passed.read_by(reader), UsageError) << "the file is shorter than the block";
  }
}

TEST(LocalFrame, TensorsThatGoNowhereAreNamed) {
  const at::Tensor quantized = at::quantize_per_tensor(at::ones({2}), 0.1, 0, at::kQInt8);
  const at::Tensor meta = at::empty({2}, at::TensorOptions().device(at::kMeta));
  EXPECT_FALSE(problem_of(many_tensors()));
  for (const at::Tensor& tensor : {quantized, meta}) {
    const auto problem = problem_of({at::ones({1}), tensor});
    ASSERT_TRUE(problem);
    EXPECT_NE(problem->find("cannot be sent; move it to the CPU"), std::string::npos) << *problem;
    EXPECT_THROW(to_outgoing({.parcel = {{}, {tensor}}}), UsageError);
  }
}

}  // namespace
}  // namespace lockstep::rpc
