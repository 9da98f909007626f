#include "examples/data/digits_dataset.h"

#include <cerrno>
#include <fstream>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/map.h>
#include <torch/data/samplers/sequential.h>
#include <torch/data/transforms/stack.h>

#include "lockstep/base/error.h"
#include "lockstep/os/files/temporary_directory.h"

namespace examples {
namespace {

using lockstep::Error;
using lockstep::SystemError;
using lockstep::TemporaryDirectory;
using lockstep::UsageError;

class DigitsDatasetTest : public testing::Test {
 protected:
  // Sample i: first pixel i % 17, the others 0, label i % 10.
  std::filesystem::path write_samples(int count) const {
    const auto file = folder_ / "digits.csv";
    std::ofstream stream(file);
    for (int i = 0; i < count; ++i) {
      stream << i % 17;
      for (int pixel = 1; pixel < 64; ++pixel) stream << ",0";
      stream << "," << i % 10 << "\n";
    }
    return file;
  }

  const TemporaryDirectory directory_{std::filesystem::temp_directory_path(), "lockstep-digits-"};
  const std::filesystem::path folder_ = directory_.path();
};

TEST_F(DigitsDatasetTest, ScalesPixelsToOneAndKeepsTheOrder) {
  DigitsDataset digits = DigitsDataset::read(write_samples(17));
  EXPECT_EQ(digits.size(), 17U);
  EXPECT_EQ(digits.images().sizes(), (std::vector<std::int64_t>{17, 1, 8, 8}));
  const auto sample = digits.get(16);
  EXPECT_EQ(sample.data.sizes(), (std::vector<std::int64_t>{1, 8, 8}));
  EXPECT_EQ(sample.data.sum().item<float>(), 1.0F);
  EXPECT_EQ(sample.target.item<std::int64_t>(), 6);
}

TEST_F(DigitsDatasetTest, SplitsIntoDisjointPartsThatDependOnTheSeedAlone) {
  const DigitsDataset digits = DigitsDataset::read(write_samples(97));
  const DigitsSplit split = digits.split(0.2, 1);
  EXPECT_EQ(split.test.size(), 19U);
  EXPECT_EQ(split.train.size(), 78U);
  const auto all = [](const DigitsSplit& parts) {
    return std::get<0>(at::sort(at::cat({parts.train.labels(), parts.test.labels()})));
  };
  EXPECT_TRUE(at::equal(all(split), std::get<0>(at::sort(digits.labels()))));
  EXPECT_TRUE(at::equal(split.train.images(), digits.split(0.2, 1).train.images()));
  EXPECT_FALSE(at::equal(split.train.images(), digits.split(0.2, 2).train.images()));
}

TEST_F(DigitsDatasetTest, RefusesASplitThatLeavesAPartEmpty) {
  const DigitsDataset digits = DigitsDataset::read(write_samples(3));
  for (const double fraction : {0.0, 1.0, -0.5, 0.1, 0.9}) {
    EXPECT_THROW(digits.split(fraction), UsageError) << fraction;
  }
}

TEST_F(DigitsDatasetTest, SaysWhichFileCannotBeReadAndWhatToDo) {
  EXPECT_THROW(DigitsDataset::read(folder_), Error) << "a folder";
  const std::string file = (folder_ / "absent.csv").string();
  try {
    DigitsDataset::read(file);
    ADD_FAILURE() << file << " was read";
  } catch (const SystemError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(file), std::string::npos) << message;
    EXPECT_EQ(error.errno_value(), ENOENT) << message;
    EXPECT_NE(message.find("examples/data/digits.csv"), std::string::npos) << message;
  }
}

TEST_F(DigitsDatasetTest, WorksWithADataLoader) {
  const DigitsDataset digits = DigitsDataset::read(write_samples(7));
  auto loader = torch::data::make_data_loader(
      DigitsDataset(digits).map(torch::data::transforms::Stack<>()),
      torch::data::samplers::SequentialSampler(7), torch::data::DataLoaderOptions(4));
  std::vector<std::int64_t> labels;
  for (const auto& batch : *loader) {
    EXPECT_EQ(batch.data.size(0), batch.target.size(0));
    const auto* first = batch.target.const_data_ptr<std::int64_t>();
    labels.insert(labels.end(), first, first + batch.target.numel());
  }
  EXPECT_EQ(labels, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6}));
}

}  // namespace
}  // namespace examples
