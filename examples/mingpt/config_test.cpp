#include "examples/mingpt/config.h"

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace mingpt {
namespace {

std::string refusal(const std::function<void(Config&)>& action) {
  Config config;
  try {
    action(config);
  } catch (const lockstep::UsageError& error) {
    return error.what();
  }
  return "taken";
}

std::string refusal_of(const std::string& assignment) {
  return refusal([&](Config& config) { apply_override(config, assignment); });
}

std::string refusal_of_json(const std::string& text) {
  return refusal([&](Config& config) { apply_json(config, text, "my.json"); });
}

TEST(Config, TakesTheTutorialsFile) {
  Config config;
  apply_json(config, R"({
    "data_config": {"path": "input.txt", "block_size": 128, "train_split": 0.9, "truncate": 0.05},
    "gpt_config": {"n_layer": 8, "n_head": 8, "n_embd": 512},
    "trainer_config": {"max_epochs": 10, "batch_size": 216, "grad_norm_clip": 1.0,
                       "snapshot_path": "gpt_snapshots", "save_every": 3, "use_amp": true},
    "optimizer_config": {"weight_decay": 0.1, "learning_rate": 0.0003}})",
             "my.json");
  EXPECT_EQ(config.data.path, std::vector<std::string>{"input.txt"});
  EXPECT_EQ(config.data.truncate, 0.05);
  EXPECT_EQ(config.gpt.n_embd, 512);
  EXPECT_EQ(config.trainer.batch_size, 216);
  EXPECT_EQ(config.trainer.snapshot_path, "gpt_snapshots");
  EXPECT_EQ(config.trainer.precision, Precision::kFloat16);
  EXPECT_EQ(config.optimizer.learning_rate, 3e-4);
  EXPECT_EQ(config.optimizer.beta2, 0.95);
}

TEST(Config, LaterValuesWin) {
  Config config;
  apply_json(config, R"({"trainer_config": {"max_epochs": 10}})", "my.json");
  apply_override(config, "trainer_config.max_epochs=3");
  apply_override(config, "gpt_config.model_type=gpt-mini");
  apply_override(config, "gpt_config.n_layer=2");
  apply_override(config, "trainer_config.precision=bf16");
  apply_override(config, R"(data_config.path=["a.txt","b=c.txt"])");
  EXPECT_EQ(config.trainer.max_epochs, 3);
  EXPECT_EQ(config.gpt.n_layer, 2);
  EXPECT_EQ(config.gpt.n_embd, 192);
  EXPECT_EQ(config.trainer.precision, Precision::kBFloat16);
  EXPECT_EQ(config.data.path, (std::vector<std::string>{"a.txt", "b=c.txt"}));
}

TEST(Config, WhatItShowsItTakes) {
  Config config;
  apply_override(config, "trainer_config.precision=fp16");
  apply_override(config, "optimizer_config.learning_rate=0.125");
  Config copy;
  const std::string lines = describe(config);
  for (std::size_t from = 0; from < lines.size(); from = lines.find('\n', from) + 1) {
    const std::string line = lines.substr(from, lines.find('\n', from) - from);
    if (line != "data_config.path=[]") apply_override(copy, line);
  }
  EXPECT_EQ(describe(copy), lines);
}

TEST(Config, UnknownKeysAreRefusedWithTheNearest) {
  EXPECT_EQ(refusal_of("trainer_config.max_epoch=3"),
            "trainer_config.max_epoch=3: no key is called trainer_config.max_epoch; did you mean "
            "trainer_config.max_epochs?");
  EXPECT_EQ(refusal_of("batch_size=3"),
            "batch_size=3: no key is called batch_size; did you mean trainer_config.batch_size?");
  EXPECT_EQ(refusal_of_json(R"({"trainer_confg": {"seed": 1}})"),
            "my.json: no key is called trainer_confg.seed; did you mean trainer_config?");
  EXPECT_EQ(refusal_of_json(R"({"seed": 1})"),
            "my.json: seed is no section, {…}; did you mean trainer_config.seed?");
  EXPECT_EQ(refusal_of("a.b=1"), "a.b=1: no key is called a.b");
}

TEST(Config, ValuesThatCannotBeAreRefused) {
  for (const char* assignment :
       {"trainer_config.max_epochs=0", "trainer_config.max_epochs=1.5",
        "trainer_config.max_epochs=99999999999999999999", "trainer_config.batch_size=\"8\"",
        "trainer_config.seed=-1", "trainer_config.precision=fp8", "trainer_config.use_amp=1",
        "trainer_config.snapshot_path=", "gpt_config.attn_pdrop=1.1", "gpt_config.model_type=gpt9",
        "data_config.path=[]", "data_config.path=[1]", "optimizer_config.learning_rate=fast",
        "optimizer_config.learning_rate=null", "trainer_config.max_epochs"}) {
    EXPECT_NE(refusal_of(assignment), "taken") << assignment;
  }
  EXPECT_EQ(refusal_of("gpt_config.n_head=\xff"),
            "gpt_config.n_head=\xff: gpt_config.n_head must be an integer from 1 to 2147483647, "
            "not \"\xef\xbf\xbd\"");
  EXPECT_EQ(refusal_of_json("[1]"),
            "my.json: not an object of sections, {\"trainer_config\": {…}, …}");
  EXPECT_EQ(refusal_of_json("{"), "my.json: byte 2 is not as JSON has it");
}

}  // namespace
}  // namespace mingpt
