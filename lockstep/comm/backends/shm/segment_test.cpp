#include "lockstep/comm/backends/shm/segment.h"

#include <memory>

#include <gtest/gtest.h>
#include <unistd.h>

#include "lockstep/comm/backends/shm/engine_testing.h"

namespace lockstep::shm {
namespace {

// As a peer in another process does.
TEST(Segment, APeerFindsABlockInAWindowOfItsOwn) {
  const std::shared_ptr<Segment> segment = testing_engine::make_segment(2);
  Segment peer(UniqueFd(::dup(segment->file())), segment->layout());
  const std::uint64_t offset = segment->layout().heap(1).begin + 3 * kPageBytes;
  std::byte* const block = segment->map_heap(1).data() + 3 * kPageBytes;
  std::byte* const seen = peer.heap_at(offset, 100'000);
  EXPECT_NE(seen, block);
  EXPECT_EQ(segment->heap_at(offset, 100'000), block);
  block[99'999] = std::byte{42};
  EXPECT_EQ(seen[99'999], std::byte{42});
  seen[0] = std::byte{7};
  EXPECT_EQ(block[0], std::byte{7});
  EXPECT_EQ(peer.heap_at(offset, 100'000), seen) << "mapped once";
}

}  // namespace
}  // namespace lockstep::shm
