#include "lockstep/parameter_server/internal/shard.h"

#include <filesystem>

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep::parameter_server {
namespace {

Parts parts_of(const std::vector<at::Tensor>& parameters) {
  return {.parameters = parameters,
          .tables = {{.name = "words", .rows = 5000, .columns = 3, .seed = 7}},
          .optimizer =
              [](std::vector<at::Tensor> values) {
                return std::make_unique<torch::optim::Adam>(std::move(values), 0.1);
              },
          .table_optimizer =
              [](std::vector<at::Tensor> tables) {
                return std::make_unique<torch::optim::Adagrad>(std::move(tables), 0.1);
              }};
}

Gradients gradients_of(const Shard& shard, double value) {
  return {.dense = at::full({shard.values().numel()}, value),
          .tables = {{at::tensor({1, 0, 1}, at::kLong), at::full({3, 3}, value)}}};
}

std::vector<at::Tensor> parameters_of_formula() {
  return {at::arange(7, at::kFloat), at::arange(7, 13, at::kFloat).view({2, 3})};
}

TEST(ParameterShard, HoldsItsSliceAndItsRows) {
  const Parts parts = parts_of(parameters_of_formula());
  const Shard whole(parts, 0, 1);
  for (int server = 0; server < 3; ++server) {
    const Shard shard(parts, server, 3);
    const Slice slice = slice_of(13, server, 3);
    EXPECT_TRUE(shard.values().equal(at::arange(slice.begin, slice.end, at::kFloat)));
    // Rows lie as they are dealt out, and are the same however many servers there are.
    const at::Tensor own = at::arange(0, rows_of(5000, server, 3), at::kLong);
    EXPECT_TRUE(shard.rows(0, own).equal(whole.rows(0, own * 3 + server)));
  }
  const at::Tensor all = whole.rows(0, at::arange(0, 5000, at::kLong));
  EXPECT_NEAR(all.std().item<double>(), 1, 0.05);
}

TEST(ParameterShard, UpdatesByTheMeanAndOnlyRowsThatAreNamed) {
  const at::Tensor parameter = at::zeros({4});
  Parts parts = parts_of({parameter});
  parts.optimizer = parts.table_optimizer = [](std::vector<at::Tensor> values) {
    return std::make_unique<torch::optim::SGD>(std::move(values), 0.5);
  };
  Shard shard(parts, 0, 1);
  const at::Tensor before = shard.rows(0, at::arange(0, 4, at::kLong));
  std::vector<Gradients> gradients;
  gradients.push_back(gradients_of(shard, 1));
  gradients.push_back(gradients_of(shard, 3));
  shard.update(std::move(gradients));
  EXPECT_EQ(shard.updates(), 1);
  EXPECT_TRUE(shard.values().equal(at::full({4}, -1.0)));
  const at::Tensor change = shard.rows(0, at::arange(0, 4, at::kLong)) - before;
  EXPECT_TRUE(change.allclose(at::tensor({-1.0, -2.0, 0.0, 0.0}, at::kFloat).unsqueeze(1)));
}

TEST(ParameterShard, GoesOnFromItsSnapshotWithTheSameBits) {
  const TemporaryDirectory folder(std::filesystem::temp_directory_path(), "shard-");
  const auto path = std::filesystem::path(folder.path()) / "shard.pt";
  const Parts parts = parts_of(parameters_of_formula());
  const auto update = [](Shard& shard, double value) {
    std::vector<Gradients> one;
    one.push_back(gradients_of(shard, value));
    shard.update(std::move(one));
  };
  Shard first(parts, 1, 2);
  update(first, 1);
  first.save(path, 17);
  update(first, 2);
  Shard second(parts, 1, 2);
  EXPECT_EQ(second.load(path), 17);
  EXPECT_EQ(second.updates(), 1);
  update(second, 2);
  EXPECT_TRUE(second.values().equal(first.values()));
  const at::Tensor rows = at::tensor({0, 1}, at::kLong);
  EXPECT_TRUE(second.rows(0, rows).equal(first.rows(0, rows)));

  Shard other(parts, 0, 2);
  EXPECT_THROW(other.load(path), UsageError);
}

TEST(ParameterShard, RefusesWhatDoesNotFit) {
  const Shard shard(parts_of({at::zeros({4})}), 0, 1);
  EXPECT_NO_THROW(shard.check(gradients_of(shard, 1)));
  const auto refuses = [&](auto&& change) {
    Gradients gradients = gradients_of(shard, 1);
    change(gradients);
    EXPECT_THROW(shard.check(gradients), UsageError);
  };
  refuses([](Gradients& gradients) { gradients.dense = at::zeros({3}); });
  refuses([](Gradients& gradients) { gradients.dense = at::zeros({4}, at::kDouble); });
  refuses([](Gradients& gradients) { gradients.tables.clear(); });
  refuses([](Gradients& gradients) { gradients.tables[0].rows[0] = 5000; });
  refuses([](Gradients& gradients) { gradients.tables[0].rows[0] = -1; });
  refuses([](Gradients& gradients) { gradients.tables[0].gradients = at::zeros({3, 2}); });
  refuses([](Gradients& gradients) { gradients.tables[0].rows = at::zeros({3}); });
  EXPECT_THROW(shard.rows(1, at::zeros({1}, at::kLong)), UsageError);
  EXPECT_THROW(Shard({}, 0, 1), UsageError);
}

}  // namespace
}  // namespace lockstep::parameter_server
