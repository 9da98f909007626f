#include "lockstep/record/internal/hash_log.h"

#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {
namespace {

class HashLogTest : public ::testing::Test {
 protected:
  static HashLog::Begin begin_at(std::int64_t step, int ranks) {
    return {.step = step,
            .ranks = ranks,
            .logical_shards = 8,
            .kernels = "LibTorch=2 kernels=AVX512",
            .directory = "/runs/a b",
            .program = {.path = "/bin/train",
                        .arguments = {"--lr=1", "", "a \"b\""},
                        .working_directory = "/home"}};
  }
  void append(const std::string& text) const {
    std::ofstream(folder_.path() / "hashes.jsonl", std::ios::app) << text;
  }
  std::string message() const {
    try {
      read_hashes(folder_.path());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  const TemporaryDirectory folder_{std::filesystem::temp_directory_path(), "hash-log-"};
};

TEST_F(HashLogTest, ReadsWhatWasWritten) {
  const TensorHashes tensors = {{"weight", 0x00c5a2e9f01b3d47}, {"bias", ~std::uint64_t{0}}};
  HashLog log(folder_.path());
  log.begin(begin_at(0, 2));
  log.add(1, tensors);
  const LoggedHashes logged = read_hashes(folder_.path());
  ASSERT_EQ(logged.runs.size(), 1U);
  EXPECT_EQ(logged.runs[0].ranks, 2);
  EXPECT_EQ(logged.runs[0].logical_shards, 8);
  EXPECT_EQ(logged.runs[0].kernels, "LibTorch=2 kernels=AVX512");
  EXPECT_EQ(logged.runs[0].directory, "/runs/a b");
  EXPECT_EQ(logged.runs[0].program.path, "/bin/train");
  EXPECT_EQ(logged.runs[0].program.arguments, begin_at(0, 2).program.arguments);
  EXPECT_EQ(logged.runs[0].program.working_directory, "/home");
  ASSERT_EQ(logged.steps.size(), 1U);
  EXPECT_EQ(logged.steps.at(1).tensors, tensors);
}

TEST_F(HashLogTest, AResumeReplacesTheStepsBehindItsSnapshot) {
  {
    HashLog log(folder_.path());
    log.begin(begin_at(0, 2));
    for (std::uint64_t step = 1; step <= 7; ++step)
      log.add(static_cast<std::int64_t>(step), {{"a", step}});
  }
  append("{\"step\": 8, \"tens");  // It was killed.
  HashLog log(folder_.path());
  log.begin(begin_at(4, 3));
  log.add(5, {{"a", 50}});
  const LoggedHashes logged = read_hashes(folder_.path());
  ASSERT_EQ(logged.steps.size(), 5U);
  EXPECT_EQ(logged.steps.at(4).run, 0U);
  EXPECT_EQ(logged.steps.at(5).run, 1U);
  EXPECT_EQ(logged.steps.at(5).tensors.front().hash, 50U);
  EXPECT_EQ(logged.runs.at(1).ranks, 3);
}

TEST_F(HashLogTest, SaysWhatIsMissingOrDamaged) {
  EXPECT_NE(message().find("has no hashes.jsonl; train with log_hashes_every"), std::string::npos);
  HashLog(folder_.path()).begin(begin_at(0, 2));
  for (const char* const line :
       {"{\"step\": 1, \"tensors\": {\"a\": \"00c5\"}}\n", "{}\n", "text\n"}) {
    const TemporaryDirectory other(std::filesystem::temp_directory_path(), "hash-log-");
    HashLog(other.path()).begin(begin_at(0, 2));
    std::ofstream(other.path() / "hashes.jsonl", std::ios::app) << line;
    EXPECT_THROW(read_hashes(other.path()), CorruptFile) << line;
  }
  append("text\n");
  EXPECT_NE(message().find("line 2 is damaged"), std::string::npos) << message();
}

LoggedHashes of_steps(std::int64_t first, const std::vector<TensorHashes>& steps) {
  LoggedHashes logged;
  for (const TensorHashes& tensors : steps) logged.steps[first++] = {.run = 0, .tensors = tensors};
  return logged;
}

TEST(HashDifference, IsThatOfTheFirstStepAndTensor) {
  const LoggedHashes expected =
      of_steps(1, {{{"a", 1}, {"b", 2}}, {{"a", 3}, {"b", 4}}, {{"a", 5}, {"b", 6}}});
  EXPECT_FALSE(first_difference(expected, expected));
  EXPECT_FALSE(first_difference(expected, of_steps(2, {{{"a", 3}, {"b", 4}}})));
  EXPECT_FALSE(first_difference(expected, of_steps(4, {{{"a", 0}}})));  // which only one has
  const auto second = first_difference(
      expected, of_steps(1, {{{"a", 1}, {"b", 2}}, {{"a", 3}, {"b", 0}}, {{"a", 0}, {"b", 0}}}));
  ASSERT_TRUE(second);
  EXPECT_EQ(second->step, 2);
  EXPECT_EQ(second->tensor, "b");
  EXPECT_EQ(second->differing, 1U);
  EXPECT_EQ(second->tensors, 2U);
}

TEST(HashDifference, NamesTensorsThatOneRunDoesNotHave) {
  const LoggedHashes expected = of_steps(1, {{{"a", 1}, {"b", 2}}});
  EXPECT_EQ(first_difference(expected, of_steps(1, {{{"a", 1}}}))->tensor, "b");
  EXPECT_EQ(first_difference(expected, of_steps(1, {{{"a", 1}, {"b", 2}, {"c", 3}}}))->tensor, "c");
}

TEST(StartedProgram, IsThisOne) {
  const StartedProgram program = describe_own_program();
  EXPECT_TRUE(std::filesystem::exists(program.path)) << program.path;
  EXPECT_EQ(program.working_directory, std::filesystem::current_path());
}

}  // namespace
}  // namespace lockstep
