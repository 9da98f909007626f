#include "examples/data/cifar_dataset.h"

#include <fstream>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/samplers/sequential.h>

#include "examples/data/checksum_list.h"
#include "examples/data/cifar_format.h"
#include "lockstep/base/error.h"
#include "lockstep/os/files/temporary_directory.h"

namespace examples {
namespace {

using lockstep::Error;
using lockstep::TemporaryDirectory;
using lockstep::UsageError;

namespace fs = std::filesystem;

// Record i: labels i % 20 and i % 100, pixel k of the image (7 i + k) % 251.
std::string records_of(std::size_t count) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) {
    bytes += static_cast<char>(i % 20);
    bytes += static_cast<char>(i % 100);
    for (std::size_t k = 0; k < kCifarImageBytes; ++k) {
      bytes += static_cast<char>((7 * i + k) % 251);
    }
  }
  return bytes;
}

void write_file(const fs::path& path, const std::string& content) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

std::string sums_line(const std::string& content, const std::string& name) {
  return sha256_of(content.data(), content.size()) + "  " + name + "\n";
}

class CifarDatasetTest : public testing::Test {
 protected:
  // What reading the training set of folder_ says.
  std::string error_text() const {
    try {
      Cifar100Dataset::read(folder_, CifarPart::kTrain);
    } catch (const Error& error) {
      return std::string(error.name()) + ": " + error.what();
    }
    return "accepted";
  }
  void expect_refused(const std::string& text) const {
    EXPECT_NE(error_text().find(text), std::string::npos) << error_text();
  }

  const TemporaryDirectory directory_{fs::temp_directory_path(), "lockstep-cifar-"};
  const fs::path folder_ = directory_.path();
};

TEST_F(CifarDatasetTest, ReadsPixelsAndBothLabels) {
  write_file(folder_ / "train.bin", records_of(103));
  write_file(folder_ / "test.bin", records_of(2));
  Cifar100Dataset train = Cifar100Dataset::read(folder_, CifarPart::kTrain, {.normalize = false});
  EXPECT_EQ(train.size(), 103U);
  EXPECT_EQ(Cifar100Dataset::read(folder_, CifarPart::kTest).size(), 2U);
  EXPECT_EQ(train.class_count(), 100);
  EXPECT_TRUE(train.class_names().empty());
  EXPECT_EQ(train.labels()[102].item<std::int64_t>(), 2);
  EXPECT_EQ(train.coarse_labels()[39].item<std::int64_t>(), 19);
  EXPECT_EQ(train.pixels().sizes(), (std::vector<std::int64_t>{103, 3, 32, 32}));
  EXPECT_EQ(train.pixels()[5][2][31][7].item<int>(), (7 * 5 + 2 * 1024 + 31 * 32 + 7) % 251);

  const std::vector<std::size_t> indices = {102, 0, 25};
  const auto batch = train.get_batch(indices);
  EXPECT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{3, 3, 32, 32}));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({2, 0, 25}, at::kLong)));
  const at::Tensor chosen = train.pixels().index_select(0, at::tensor({102, 0, 25}, at::kLong));
  EXPECT_TRUE(at::equal(batch.data, chosen.to(at::kFloat).div(255)));
  EXPECT_TRUE(at::equal(train.get(25).data, batch.data[2]));
  EXPECT_EQ(train.get_batch({}).data.size(0), 0);
  EXPECT_THROW(train.get(103), UsageError);
}

TEST_F(CifarDatasetTest, NormalizesWithTheBitsOfTorchvision) {
  write_file(folder_ / "train.bin", records_of(3));
  Cifar100Dataset train = Cifar100Dataset::read(folder_, CifarPart::kTrain);
  const at::Tensor mean = at::tensor({0.5071F, 0.4867F, 0.4408F}).view({3, 1, 1});
  const at::Tensor deviation = at::tensor({0.2675F, 0.2565F, 0.2761F}).view({3, 1, 1});
  // ToTensor, then Normalize.
  const at::Tensor expected = train.pixels().to(at::kFloat).div(255).sub(mean).div(deviation);
  const std::vector<std::size_t> all = {0, 1, 2};
  EXPECT_TRUE(at::equal(train.get_batch(all).data, expected));
}

TEST_F(CifarDatasetTest, FindsTheFolderOfTheArchiveAndTheNamesOfTheClasses) {
  write_file(folder_ / "cifar-100-binary" / "train.bin", records_of(3));
  write_file(folder_ / "cifar-100-binary" / "fine_label_names.txt", "apple\r\nbear\ncup\n\n");
  const Cifar100Dataset train = Cifar100Dataset::read(folder_, CifarPart::kTrain);
  EXPECT_EQ(train.class_names(), (std::vector<std::string>{"apple", "bear", "cup"}));
  EXPECT_EQ(train.class_count(), 3);
}

TEST_F(CifarDatasetTest, SaysHowToGetWhatIsMissing) {
  expect_refused("train.bin: No such file");
  expect_refused("examples/data/get.py cifar100");
  write_file(folder_ / "train.bin" / "x", "");
  expect_refused("train.bin");
}

TEST_F(CifarDatasetTest, RefusesFilesThatAreCutOffOrHaveLabelsOfNoClass) {
  write_file(folder_ / "train.bin", records_of(2) + "x");
  expect_refused("CorruptFile: CIFAR-100 dataset " + (folder_ / "train.bin").string() +
                 " has 6149 bytes");
  write_file(folder_ / "train.bin", "");
  expect_refused("has 0 bytes");
  std::string records = records_of(3);
  records[kCifarRecordBytes + 1] = 100;
  write_file(folder_ / "train.bin", records);
  expect_refused("record 1: label 100 is out of range, there are 100 classes");
  write_file(folder_ / "train.bin", records_of(3));
  write_file(folder_ / "fine_label_names.txt", "apple\nbear\n");
  expect_refused("record 2: label 2 is out of range, there are 2 classes");
}

TEST_F(CifarDatasetTest, ComparesWithTheChecksumsOfTheFolder) {
  const std::string records = records_of(3);
  const std::string other = records_of(4);
  write_file(folder_ / "train.bin", records);
  write_file(folder_ / "SHA256SUMS", sums_line("", "test.bin") + sums_line(records, "train.bin"));
  EXPECT_EQ(error_text(), "accepted");
  write_file(folder_ / "train.bin", other);
  expect_refused("CorruptFile");
  expect_refused("but SHA256SUMS says");
  EXPECT_EQ(Cifar100Dataset::read(folder_, CifarPart::kTrain, {.verify = false}).size(), 4U);
  write_file(folder_ / "SHA256SUMS", "nonsense\n");
  expect_refused("SHA256SUMS, line 1");
  write_file(folder_ / "SHA256SUMS", sums_line("", "test.bin"));
  EXPECT_EQ(error_text(), "accepted") << "not in the list";
}

TEST_F(CifarDatasetTest, StaysWholeWhenAnotherFileTakesItsPlace) {
  write_file(folder_ / "train.bin", records_of(3));
  Cifar100Dataset train = Cifar100Dataset::read(folder_, CifarPart::kTrain);
  const at::Tensor before = train.get(2).data.clone();
  write_file(folder_ / "new.bin", std::string(kCifarRecordBytes, '\0'));
  fs::rename(folder_ / "new.bin", folder_ / "train.bin");
  EXPECT_TRUE(at::equal(train.get(2).data, before));
}

TEST_F(CifarDatasetTest, WhatIsDoneToThePixelsStaysInMemory) {
  write_file(folder_ / "train.bin", records_of(3));
  Cifar100Dataset::read(folder_, CifarPart::kTrain).pixels().zero_();
  const Cifar100Dataset again = Cifar100Dataset::read(folder_, CifarPart::kTrain);
  EXPECT_EQ(again.pixels()[2][0][0][9].item<int>(), 7 * 2 + 9);
}

TEST(SyntheticCifar, DependsOnSeedPartAndIndexAlone) {
  const auto make = [](std::size_t size, CifarPart part, std::uint64_t seed) {
    return Cifar100Dataset::synthetic(size, part, seed).pixels();
  };
  const at::Tensor train = make(7, CifarPart::kTrain, 1);
  EXPECT_TRUE(at::equal(train, make(9, CifarPart::kTrain, 1).narrow(0, 0, 7)));
  EXPECT_FALSE(at::equal(train, make(7, CifarPart::kTest, 1)));
  EXPECT_FALSE(at::equal(train, make(7, CifarPart::kTrain, 2)));
  EXPECT_THROW(make(0, CifarPart::kTrain, 1), UsageError);
}

TEST(SyntheticCifar, HasTheLabelsOfCifar) {
  const auto data = Cifar100Dataset::synthetic(203, CifarPart::kTrain);
  EXPECT_EQ(data.labels()[202].item<std::int64_t>(), 2);
  EXPECT_EQ(data.coarse_labels()[199].item<std::int64_t>(), 19);
  EXPECT_EQ(data.class_count(), 100);
}

TEST(SyntheticCifar, CanBeLearned) {
  constexpr std::int64_t kEach = 5;
  const auto train = Cifar100Dataset::synthetic(100 * kEach, CifarPart::kTrain, 3);
  const auto test = Cifar100Dataset::synthetic(200, CifarPart::kTest, 3);
  const auto flat = [](const Cifar100Dataset& data) {
    return data.pixels().to(at::kFloat).flatten(1);
  };
  // The nearest mean of a class.
  const at::Tensor means = flat(train).view({kEach, 100, -1}).mean(0);
  const at::Tensor guesses = at::cdist(flat(test), means).argmin(1);
  EXPECT_TRUE(at::equal(guesses, test.labels()));
}

TEST(SyntheticCifar, WorksWithADataLoaderWithoutStack) {
  auto loader = torch::data::make_data_loader(Cifar100Dataset::synthetic(7, CifarPart::kTest),
                                              torch::data::samplers::SequentialSampler(7),
                                              torch::data::DataLoaderOptions(4));
  std::vector<std::int64_t> sizes;
  for (const auto& batch : *loader) {
    EXPECT_EQ(batch.data.size(0), batch.target.size(0));
    sizes.push_back(batch.data.size(0));
  }
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{4, 3}));
}

}  // namespace
}  // namespace examples
