#include "lockstep/snapshot/checkpoint/strided_reader.h"

#include <random>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/snapshot/internal/snapshot_testing.h"

namespace lockstep::testing {
namespace {

using Sizes = std::vector<std::int64_t>;

class StridedReaderTest : public ::testing::Test {
 protected:
  /// A file with the numbers from 0 on behind a header of 12 bytes.
  ReadableFile numbers(std::int64_t count) {
    numbers_ = at::arange(count, at::kInt);
    put_file_bytes(path_, std::string(12, '\7') +
                              std::string(static_cast<const char*>(numbers_.const_data_ptr()),
                                          numbers_.nbytes()));
    return ReadableFile(path_);
  }

  TemporaryDirectory directory_{std::filesystem::temp_directory_path(), "strided-"};
  std::filesystem::path path_ = directory_.path() / "numbers";
  at::Tensor numbers_;
};

TEST_F(StridedReaderTest, GivesTheElementsOfAnyStrides) {
  std::mt19937 random(2);
  const ReadableFile file = numbers(6000);
  for (int round = 0; round < 500; ++round) {
    const at::Tensor whole = numbers_.narrow(0, 7, 5040).view({7, 8, 9, 10});
    Sizes order{0, 1, 2, 3};
    std::shuffle(order.begin(), order.end(), random);
    at::Tensor source = whole.permute(order);
    at::Tensor target =
        at::empty(whole.sizes(), at::kInt).permute({3, 1, 0, 2}).permute({2, 1, 3, 0});
    target = target.permute(order);
    for (std::int64_t i = 0; i < 4; ++i) {
      const auto size = source.size(i);
      const auto begin = static_cast<std::int64_t>(random() % static_cast<unsigned>(size));
      const auto length =
          static_cast<std::int64_t>(random() % static_cast<unsigned>(size - begin + 1));
      const std::int64_t step = random() % 3 == 0 ? 2 : 1;
      source = source.slice(i, begin, begin + length, step);
      target = target.slice(i, begin, begin + length, step);
    }
    target.fill_(-1);
    read_strided(file,
                 {.offset_bytes = 12 + 4 * static_cast<std::uint64_t>(source.storage_offset()),
                  .sizes = source.sizes().vec(),
                  .strides = source.strides().vec()},
                 target);
    ASSERT_TRUE(at::equal(target, source)) << "round " << round << ", order " << order;
  }
}

TEST_F(StridedReaderTest, GivesRowsThatAreLongerThanTheBuffer) {
  const std::int64_t columns = 400'000;
  const ReadableFile file = numbers(3 * columns);
  const at::Tensor source = numbers_.view({3, columns});
  const at::Tensor transposed = at::empty({columns, 3}, at::kInt);
  read_strided(file, {12, {columns, 3}, {1, columns}}, transposed);
  EXPECT_TRUE(at::equal(transposed, source.t()));
  const at::Tensor every_fifth = at::empty({3, columns / 5}, at::kInt);
  read_strided(file, {12, {3, columns / 5}, {columns, 5}}, every_fifth);
  EXPECT_TRUE(at::equal(every_fifth, source.slice(1, 0, columns, 5)));
}

TEST_F(StridedReaderTest, AddsTheCrcOfOneRun) {
  const std::int64_t columns = 300'000;
  const ReadableFile file = numbers(2 * columns);
  const auto expected = static_cast<std::uint32_t>(
      ::crc32_z(0, static_cast<const Bytef*>(numbers_.const_data_ptr()), numbers_.nbytes()));
  for (const Sizes& strides : {Sizes{columns, 1}, Sizes{1, 2}}) {
    EXPECT_TRUE(is_one_run({2, columns}, strides));
    std::uint32_t crc32 = 0;
    read_strided(file, {12, {2, columns}, strides}, at::empty({2, columns}, at::kInt), &crc32);
    EXPECT_EQ(crc32, expected);
  }
  EXPECT_FALSE(is_one_run({2, 3}, {4, 1}));
  EXPECT_FALSE(is_one_run({2, 3}, {0, 1}));
  EXPECT_TRUE(is_one_run({}, {}));
}

}  // namespace
}  // namespace lockstep::testing
