#include "lockstep/program/program_options.h"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {
namespace {

class ProgramOptionsTest : public testing::Test {
 protected:
  ProgramOptionsTest() : program_("Does a thing.", {.environment_prefix = "LOCKSTEP_TESTED_"}) {
    program_.add("lr", lr_, "learning rate");
    program_.add("batch_size", batch_size_, "samples");
    program_.add("ddp.bucket_count", buckets_, "buckets");
    program_.add("out_dir", out_dir_, "a folder");
    program_.add("log_samples", log_samples_, "whether");
  }
  ~ProgramOptionsTest() override {
    for (const std::string& variable : set_) unsetenv(variable.c_str());
  }

  // Nothing, or what it said.
  std::string parse(std::vector<std::string> arguments) {
    std::vector<const char*> argv = {"program"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    try {
      goes_on_ = program_.parse(static_cast<int>(argv.size()), argv.data());
      return "";
    } catch (const UsageError& error) {
      return error.what();
    }
  }

  void set(const std::string& variable, const std::string& value) {
    set_.push_back(variable);
    setenv(variable.c_str(), value.c_str(), 1);
  }

  std::string file(const std::string& text) {
    const auto path = folder_.path() / "options.toml";
    std::ofstream(path) << text;
    return path.string();
  }

  TemporaryDirectory folder_{std::filesystem::temp_directory_path(), "config-"};
  std::vector<std::string> set_;
  double lr_ = 0.5;
  std::int64_t batch_size_ = 32;
  std::uint64_t buckets_ = 3;
  std::string out_dir_ = "runs";
  bool log_samples_ = false;
  bool goes_on_ = false;
  ProgramOptions program_;
};

TEST_F(ProgramOptionsTest, DefaultsStayWhereNothingIsSaid) {
  EXPECT_EQ(parse({}), "");
  EXPECT_TRUE(goes_on_);
  EXPECT_EQ(program_.toml(),
            "lr = 0.5\nbatch_size = 32\nout_dir = \"runs\"\nlog_samples = false\n\n[ddp]\n"
            "bucket_count = 3\n");
}

TEST_F(ProgramOptionsTest, AFlagCountsMoreThanTheEnvironmentAndThatMoreThanTheFile) {
  const std::string path =
      file("lr = 1.0\nbatch_size = 1\nout_dir = \"file\"\n[ddp]\nbucket_count = 1\n");
  set("LOCKSTEP_TESTED_LR", "2");
  set("LOCKSTEP_TESTED_DDP__BUCKET_COUNT", "2");
  EXPECT_EQ(parse({"--config", path, "--ddp.bucket-count=4", "--batch_size", "5", "--log-samples"}),
            "");
  EXPECT_EQ(lr_, 2);
  EXPECT_EQ(buckets_, 4u);
  EXPECT_EQ(batch_size_, 5);
  EXPECT_EQ(out_dir_, "file");
  EXPECT_TRUE(log_samples_);
}

TEST_F(ProgramOptionsTest, OfAFlagThatIsGivenTwiceTheLastCounts) {
  EXPECT_EQ(parse({"--lr=1", "--batch-size=5", "--lr=2"}), "");
  EXPECT_EQ(lr_, 2);
  EXPECT_EQ(batch_size_, 5);
}

TEST_F(ProgramOptionsTest, WhatItPrintsItReads) {
  EXPECT_EQ(parse({"--lr=0.1", "--out-dir=a \"b\"\\\n c", "--log-samples=true"}), "");
  const std::string written = program_.toml();
  const std::string path = file(written);
  lr_ = 7;
  out_dir_.clear();
  log_samples_ = false;
  set("LOCKSTEP_TESTED_CONFIG", path);
  EXPECT_EQ(parse({}), "");
  EXPECT_EQ(lr_, 0.1);
  EXPECT_EQ(out_dir_, "a \"b\"\\\n c");
  EXPECT_EQ(program_.toml(), written);
}

TEST_F(ProgramOptionsTest, WhatItPrintsItReadsAlsoWhereTomlHasNoSuchInteger) {
  for (const char* number :
       {"9223372036854775807", "9223372036854775808", "18446744073709551615"}) {
    EXPECT_EQ(parse({concat("--ddp.bucket-count=", number), "--lr=3e19"}), "");
    const std::string written = program_.toml();
    buckets_ = 0;
    lr_ = 0;
    EXPECT_EQ(parse({"--config", file(written)}), "") << written;
    EXPECT_EQ(concat(buckets_), number);
    EXPECT_EQ(lr_, 3e19);
  }
  EXPECT_NE(parse({"--config", file("batch_size = \"5\"\n")}), "");
}

TEST_F(ProgramOptionsTest, NumbersOutsideTheirRangeAreRefused) {
  int epochs = 3;
  double rate = 0.5;
  float share = 0.5;
  program_.add("epochs", epochs, "epochs", {.least = 1, .most = 8});
  program_.add("rate", rate, "rate", NumberRange<double>::positive());
  program_.add("share", share, "share", {.least = 0, .most = 1});
  for (const char* text : {"0", "9", "-1", "1e0", "", "99999999999999999999"}) {
    EXPECT_EQ(parse({concat("--epochs=", text)}),
              concat("--epochs must be an integer from 1 to 8, not '", text, "'"));
  }
  for (const char* text : {"0", "-1", "inf", "nan", "fast"}) {
    EXPECT_EQ(parse({concat("--rate=", text)}),
              concat("--rate must be a positive number, not '", text, "'"));
  }
  EXPECT_EQ(parse({"--share=1.5"}), "--share must be a number from 0 to 1, not '1.5'");
  EXPECT_EQ(parse({"--epochs=8", "--rate=1e-3", "--share=1"}), "");
  EXPECT_EQ(epochs, 8);
  EXPECT_EQ(rate, 1e-3);
  EXPECT_EQ(share, 1.0F);
}

TEST_F(ProgramOptionsTest, AFileMayGiveAFlagOrANumber) {
  std::string value = "true";
  program_.add({.name = "reshard",
                .help = "how",
                .set =
                    [&value](const std::string& text) {
                      value = text;
                      return std::string();
                    },
                .get = [&value] { return value; },
                .kind = ProgramOption::Kind::kFlagOrNumber});
  EXPECT_EQ(parse({"--reshard=2"}), "");
  EXPECT_NE(program_.toml().find("reshard = 2\n"), std::string::npos) << program_.toml();
  for (const char* text : {"4", "false"}) {
    EXPECT_EQ(parse({"--config", file(concat("reshard = ", text, "\n"))}), "");
    EXPECT_EQ(value, text);
  }
  EXPECT_NE(parse({"--config", file("reshard = \"4\"\n")}).find("must be true, false or a number"),
            std::string::npos);
}

TEST_F(ProgramOptionsTest, AnEmptyValueIsOne) {
  EXPECT_EQ(parse({"--out-dir=", "--lr=0.25"}), "");
  EXPECT_EQ(out_dir_, "");
  EXPECT_EQ(lr_, 0.25);
  out_dir_ = "again";
  EXPECT_EQ(parse({"--out-dir", ""}), "");
  EXPECT_EQ(out_dir_, "");
  EXPECT_EQ(parse({"--lr="}), "--lr must be a number, not ''");
}

TEST_F(ProgramOptionsTest, UnknownNamesAreRefusedWithTheNearest) {
  EXPECT_EQ(parse({"--batchsize=3"}),
            "unknown flag --batchsize; did you mean --batch-size?; see --help");
  EXPECT_EQ(parse({"epochs"}), "unexpected argument epochs; see --help");
  const std::string path = file("lr = 1.0\n[ddp]\nbucket_cont = 1\n");
  EXPECT_EQ(parse({"--config=" + path}),
            path + ":3: no option is called ddp.bucket_cont; did you mean ddp.bucket_count?");
  set("LOCKSTEP_TESTED_BATCHSIZE", "3");
  EXPECT_EQ(parse({}),
            "environment: LOCKSTEP_TESTED_BATCHSIZE is no option of this program; did you mean "
            "LOCKSTEP_TESTED_BATCH_SIZE?");
}

TEST_F(ProgramOptionsTest, ValuesOfAnotherTypeAreRefusedWithTheirPlace) {
  EXPECT_EQ(parse({"--batch-size=many"}), "--batch-size must be an integer, not 'many'");
  EXPECT_EQ(parse({"--batch-size=99999999999999999999"}),
            "--batch-size must be an integer, not '99999999999999999999'");
  EXPECT_EQ(parse({"--ddp.bucket-count=-1"}),
            "--ddp.bucket-count must be an integer of at least 0, not '-1'");
  EXPECT_EQ(parse({"--log-samples=perhaps"}), "--log-samples must be true or false, not 'perhaps'");
  const std::string path = file("batch_size = 1.5\n");
  EXPECT_EQ(parse({"--config", path}), path + ":1: batch_size must be an integer, not '1.5'");
  const auto told = [&](const std::string& line) { return parse({"--config=" + file(line)}); };
  EXPECT_EQ(told("out_dir = true\n"), path + ":1: out_dir must be a text, not true or false");
  EXPECT_EQ(told("out_dir = 3\n"), path + ":1: out_dir must be a text, not a number");
  EXPECT_EQ(told("batch_size = \"64\"\n"), path + ":1: batch_size must be a number, not a text");
  EXPECT_EQ(told("log_samples = 1\n"),
            path + ":1: log_samples must be true or false, not a number");
  set("LOCKSTEP_TESTED_LR", "");
  EXPECT_EQ(parse({}), "environment: LOCKSTEP_TESTED_LR must be a number, not ''");
}

TEST_F(ProgramOptionsTest, AnEnumerationIsGivenByItsTexts) {
  enum class Color { kRed, kGreen, kBlue };
  Color color = Color::kGreen;
  constexpr std::array<std::pair<const char*, Color>, 3> kNames = {
      {{"blue", Color::kBlue}, {"red", Color::kRed}, {"green", Color::kGreen}}};
  program_.add("color", color, kNames, "of the sky");
  EXPECT_NE(program_.toml().find("color = \"green\"\n"), std::string::npos) << program_.toml();
  EXPECT_EQ(parse({"--color=blue"}), "");
  EXPECT_EQ(color, Color::kBlue);
  EXPECT_EQ(parse({"--color=gray"}), "--color must be blue, red or green, not 'gray'");
  EXPECT_EQ(color, Color::kBlue);
}

TEST_F(ProgramOptionsTest, HelpAndPrintConfigEndTheProgram) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(parse({"--help"}), "");
  const std::string help = testing::internal::GetCapturedStdout();
  EXPECT_FALSE(goes_on_);
  EXPECT_NE(help.find("--ddp.bucket-count NUM"), std::string::npos) << help;
  EXPECT_NE(help.find("LOCKSTEP_TESTED_LR"), std::string::npos) << help;

  testing::internal::CaptureStdout();
  EXPECT_EQ(parse({"--print-config", "--lr=3"}), "");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), program_.toml());
  EXPECT_FALSE(goes_on_);
  EXPECT_EQ(lr_, 3);
}

TEST_F(ProgramOptionsTest, ANameIsTakenOnce) {
  EXPECT_THROW(program_.add("lr", lr_, ""), UsageError);
  EXPECT_THROW(program_.add("print_config", lr_, ""), UsageError);
}

}  // namespace
}  // namespace lockstep
