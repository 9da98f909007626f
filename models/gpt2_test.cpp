#include "models/gpt2.h"

#include <fstream>
#include <sstream>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/snapshot/state_dict.h"

namespace models {
namespace {

constexpr Gpt2Config kSmallGpt2 = {
    .n_layer = 2, .n_head = 2, .n_embd = 16, .vocab_size = 11, .n_positions = 8};

Gpt2 small_gpt2() {
  at::manual_seed(1);
  Gpt2 model(kSmallGpt2);
  model->eval();
  return model;
}

at::Tensor some_tokens(std::int64_t length) {
  return (at::arange(2 * length, at::kLong) * 7 % kSmallGpt2.vocab_size).view({2, length});
}

class Gpt2Test : public ::testing::Test {
 protected:
  void change_config(const std::string& from, const std::string& to) {
    std::stringstream text;
    text << std::ifstream(folder_ / "config.json").rdbuf();
    std::string changed = text.str();
    changed.replace(changed.find(from), from.size(), to);
    std::ofstream(folder_ / "config.json") << changed;
  }

  lockstep::TemporaryDirectory directory_{std::filesystem::temp_directory_path(), "gpt2-"};
  std::filesystem::path folder_ = directory_.path() / "model";
};

TEST_F(Gpt2Test, HasTheParametersOfThePublishedModel) {
  const auto parameters = small_gpt2()->named_parameters();
  EXPECT_EQ(parameters.size(), 4 + 12 * 2);
  EXPECT_EQ(parameters["transformer.h.1.attn.c_attn.weight"].sizes(),
            (std::vector<std::int64_t>{16, 48}));
  EXPECT_EQ(parameters["transformer.h.0.mlp.c_proj.weight"].sizes(),
            (std::vector<std::int64_t>{64, 16}));
  // The count that is published for "gpt2", of the same formula as this one's.
  const auto count = [](const Gpt2Config& c) {
    return (c.vocab_size + c.n_positions + 2) * c.n_embd +
           c.n_layer * (12 * c.n_embd * c.n_embd + 13 * c.n_embd);
  };
  EXPECT_EQ(count({}), 124'439'808);
  std::int64_t elements = 0;
  for (const auto& parameter : parameters) elements += parameter.value().numel();
  EXPECT_EQ(elements, count(kSmallGpt2));
}

TEST_F(Gpt2Test, NoPositionSeesALaterOne) {
  const at::NoGradGuard no_grad;
  Gpt2 model = small_gpt2();
  const at::Tensor one = some_tokens(8);
  at::Tensor other = one.clone();
  other.narrow(1, 5, 3).fill_(3);
  const at::Tensor difference = (model(one) - model(other)).abs();
  EXPECT_EQ(difference.narrow(1, 0, 5).max().item<double>(), 0);
  EXPECT_GT(difference.narrow(1, 5, 3).max().item<double>(), 0);
}

TEST_F(Gpt2Test, IsLoadedAsItWasSaved) {
  const at::NoGradGuard no_grad;
  Gpt2 model = small_gpt2();
  save_pretrained(model, folder_, 3);
  at::manual_seed(2);
  Gpt2 loaded = load_pretrained_gpt2(folder_);
  loaded->eval();
  EXPECT_EQ(loaded->config(), kSmallGpt2);
  EXPECT_TRUE(at::equal(loaded(some_tokens(8)), model(some_tokens(8))));
  EXPECT_THROW(save_pretrained(model, folder_), lockstep::UsageError);
}

#if defined(LOCKSTEP_FAILPOINTS)
TEST_F(Gpt2Test, AFolderHasItsConfigurationOrIsNotThere) {
  lockstep::arm_failpoints("file.create:4:eio");  // Weights, their index, checksums, config.json.
  EXPECT_THROW(save_pretrained(small_gpt2(), folder_), lockstep::SystemError);
  lockstep::arm_failpoints("");
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
  save_pretrained(small_gpt2(), folder_);
  load_pretrained_gpt2(folder_);
}
#endif

TEST_F(Gpt2Test, OtherModelsAreRefused) {
  save_pretrained(small_gpt2(), folder_);
  for (const auto& [from, to] : {std::pair("\"gpt2\"", "\"bert\""),
                                 {"gelu_new", "relu"},
                                 {"\"n_layer\": 2", "\"n_layer\": 1"},
                                 {"\"n_layer\": 2", "\"n_layer\": 3"},
                                 {"\"n_embd\": 16", "\"n_embd\": 32"},
                                 {"\"n_head\": 2", "\"n_head\": 3"},
                                 {"\"n_head\": 2", "\"n_head\": \"two\""},
                                 {"{", "["}}) {
    change_config(from, to);
    EXPECT_THROW(load_pretrained_gpt2(folder_), lockstep::UsageError) << to;
    change_config(to, from);
  }
  load_pretrained_gpt2(folder_);
}

TEST_F(Gpt2Test, RefusesWhatItCannotBe) {
  EXPECT_THROW(Gpt2(Gpt2Config{.n_layer = 0}), lockstep::UsageError);
  EXPECT_THROW(Gpt2(Gpt2Config{.n_head = 5, .n_embd = 16}), lockstep::UsageError);
  EXPECT_THROW(small_gpt2()(some_tokens(9)), lockstep::UsageError);
}

}  // namespace
}  // namespace models
