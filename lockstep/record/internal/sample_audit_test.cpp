#include "lockstep/record/internal/sample_audit.h"

#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep {
namespace {

class SampleAudit : public ::testing::Test {
 protected:
  void write(int rank, const std::string& text) const {
    std::ofstream(folder_.path() / concat("samples.rank", rank, ".jsonl"), std::ios::app) << text;
  }
  void begin(int run, int world_size, int size = 4) const {
    for (int rank = 0; rank < world_size; ++rank) {
      write(rank, concat(R"({"run":)", run, R"(,"event":"begin","loader":0,"rank":)", rank,
                         R"(,"world_size":)", world_size, R"(,"dataset_size":)", size,
                         R"(,"seed":3,"least_of_epoch":)", size, "}\n"));
    }
  }
  void go_to(int run, int world_size, int epoch, int consumed) const {
    for (int rank = 0; rank < world_size; ++rank) rank_goes_to(run, rank, epoch, consumed);
  }
  void rank_goes_to(int run, int rank, int epoch, int consumed) const {
    write(rank, concat(R"({"run":)", run, R"(,"event":"go_to","loader":0,"epoch":)", epoch,
                       R"(,"consumed":)", consumed, "}\n"));
  }
  void batch(int run, int rank, int epoch, int first, int end, const std::string& samples) const {
    write(rank,
          concat(R"({"run":)", run, R"(,"event":"batch","loader":0,"epoch":)", epoch,
                 R"(,"begin":)", first, R"(,"end":)", end, R"(,"samples":[)", samples, "]}\n"));
  }
  AuditedLoader audited() const {
    const auto loaders = audit_samples(folder_.path());
    EXPECT_EQ(loaders.size(), 1U);
    return loaders.front();
  }
  std::string problems() const {
    std::string text;
    for (const std::string& problem : audited().problems) text += problem + "\n";
    return text;
  }

  TemporaryDirectory folder_{std::filesystem::temp_directory_path(), "sample-audit-"};
};

TEST_F(SampleAudit, OneRunOfTwoRanks) {
  begin(1, 2);
  batch(1, 0, 0, 0, 2, "3");
  batch(1, 1, 0, 0, 2, "1");
  batch(1, 0, 0, 2, 4, "0");
  batch(1, 1, 0, 2, 4, "2");
  batch(1, 0, 1, 0, 2, "2");
  batch(1, 1, 1, 0, 2, "0");
  EXPECT_EQ(describe(audited()),
            "loader 0: 4 samples, seed 3, 1 run on 2 ranks, 0 replayed batches\n"
            "  epoch 0: 4 samples, each once\n"
            "  epoch 1: 2 of 4 samples so far, none twice\n");
}

TEST_F(SampleAudit, WhatWasGivenBehindTheSnapshotDoesNotCount) {
  begin(1, 2);
  batch(1, 0, 0, 0, 2, "3");
  batch(1, 1, 0, 0, 2, "1");
  batch(1, 0, 0, 2, 4, "0");  // Rank 1 was killed before.
  begin(2, 1);
  go_to(2, 1, 0, 2);
  batch(2, 0, 0, 2, 3, "0");
  batch(2, 0, 0, 3, 4, "2");
  const AuditedLoader loader = audited();
  EXPECT_TRUE(loader.problems.empty()) << problems();
  EXPECT_EQ(loader.replayed_batches, 1);
  EXPECT_EQ(loader.least_ranks, 1);
  EXPECT_EQ(loader.most_ranks, 2);
  ASSERT_EQ(loader.epochs.size(), 1U);
  EXPECT_TRUE(loader.epochs[0].is_complete);
  EXPECT_EQ(loader.epochs[0].given, 4);
}

// Rank 1 was killed in an evaluation, which the survivors repeat without the log.
TEST_F(SampleAudit, WhatAnInterruptedLoopWasGivenDoesNotCount) {
  begin(1, 2);
  batch(1, 0, 0, 0, 4, "3,0");
  batch(1, 1, 0, 0, 4, "1,2");
  batch(1, 0, 1, 0, 2, "2");
  begin(2, 2);
  rank_goes_to(2, 0, 1, 0);
  rank_goes_to(2, 1, 2, 0);  // The replacement takes where rank 0 is by then, and is killed.
  begin(3, 2);
  go_to(3, 2, 2, 0);
  batch(3, 0, 2, 0, 4, "3,0");
  batch(3, 1, 2, 0, 4, "1,2");
  EXPECT_TRUE(audited().problems.empty()) << problems();
  EXPECT_EQ(audited().epochs.size(), 2U);
}

TEST_F(SampleAudit, ARunWithoutASnapshotBeginsAnew) {
  begin(1, 1);
  batch(1, 0, 0, 0, 2, "3,1");
  begin(2, 1);
  batch(2, 0, 0, 0, 3, "3,1,0");
  EXPECT_TRUE(audited().problems.empty()) << problems();
  EXPECT_EQ(audited().epochs[0].given, 3);
}

TEST_F(SampleAudit, NamesSamplesThatComeTwiceOrNever) {
  begin(1, 1);
  batch(1, 0, 0, 0, 2, "3,1");
  batch(1, 0, 0, 2, 4, "1,0");
  EXPECT_NE(problems().find(
                "epoch 0, samples 2 to 4 of its order: sample 1 was already in an earlier batch"),
            std::string::npos)
      << problems();
  EXPECT_NE(problems().find("epoch 0: 1 sample of 4 missing"), std::string::npos) << problems();
}

TEST_F(SampleAudit, NamesBatchesThatAreLeftOutOrNotWhole) {
  begin(1, 2);
  batch(1, 0, 0, 0, 2, "3");
  batch(1, 0, 0, 3, 4, "0");
  batch(1, 1, 0, 3, 4, "");
  EXPECT_NE(problems().find("samples 3 to 4 of its order: the previous batch ends at 2"),
            std::string::npos)
      << problems();
  EXPECT_NE(problems().find("only 1 of 2 ranks logged their samples"), std::string::npos)
      << problems();
}

TEST_F(SampleAudit, ARunThatWasEndedBeforeItWentOnChangesNothing) {
  begin(1, 1);
  batch(1, 0, 0, 0, 4, "3,1,0,2");
  batch(1, 0, 1, 0, 2, "2,1");
  begin(2, 1);
  begin(3, 1);
  go_to(3, 1, 1, 2);
  batch(3, 0, 1, 2, 4, "3,0");
  EXPECT_TRUE(audited().problems.empty()) << problems();
  EXPECT_EQ(audited().epochs.size(), 2U);
}

TEST_F(SampleAudit, NamesAnEpochWhoseRestIsLostButNotOneThatWasLeft) {
  begin(1, 1);
  batch(1, 0, 0, 0, 2, "3,1");
  begin(2, 1);
  go_to(2, 1, 1, 0);
  batch(2, 0, 1, 0, 2, "2,1");
  EXPECT_NE(problems().find("epoch 0 ends after 2 of 4 samples, but training continued"),
            std::string::npos)
      << problems();
  write(0, "{\"run\":2,\"event\":\"leave\",\"loader\":0,\"epoch\":1,\"consumed\":2}\n");
  batch(2, 0, 2, 0, 4, "0,1,2,3");
  EXPECT_EQ(audited().problems.size(), 1U) << problems();
  EXPECT_NE(describe(audited()).find("epoch 1: 2 of 4 samples, each once, as the loop was left"),
            std::string::npos)
      << describe(audited());
}

TEST_F(SampleAudit, NamesAnEpochThatHadEndedAndWasContinued) {
  const auto limited = [&](int run, int limit) {
    write(0,
          concat(R"({"run":)", run, R"(,"event":"begin","loader":0,"rank":0,"world_size":1,)",
                 R"("dataset_size":4,"seed":3,"least_of_epoch":4,"limit_batches":)", limit, "}\n"));
  };
  const auto last = [&](int run, int epoch, int first, int end, const std::string& samples) {
    write(0, concat(R"({"run":)", run, R"(,"event":"batch","loader":0,"epoch":)", epoch,
                    R"(,"begin":)", first, R"(,"end":)", end, R"(,"last":true,"samples":[)",
                    samples, "]}\n"));
  };
  limited(1, 2);
  batch(1, 0, 0, 0, 1, "3");
  last(1, 0, 1, 2, "1");
  EXPECT_EQ(problems(), "");
  EXPECT_TRUE(audited().epochs[0].is_complete) << "it has as many batches as the limit";
  limited(2, 2);
  go_to(2, 1, 0, 2);
  last(2, 0, 2, 4, "0,2");
  EXPECT_NE(problems().find("samples 2 to 4 of its order: the epoch ended before these samples"),
            std::string::npos)
      << problems();
}

TEST_F(SampleAudit, GoingOnInTheMiddleOfABatchIsAProblem) {
  begin(1, 1);
  batch(1, 0, 0, 0, 3, "3,1,0");
  begin(2, 1);
  go_to(2, 1, 0, 2);
  batch(2, 0, 0, 2, 4, "0,2");
  EXPECT_NE(problems().find("run 2 resumes in the middle of a batch, at sample 2 of epoch 0"),
            std::string::npos)
      << problems();
}

TEST_F(SampleAudit, RefusesFilesThatAreNoneAndPassesOverALineThatIsCutOff) {
  EXPECT_THROW(audit_samples(folder_.path()), UsageError);
  EXPECT_THROW(audit_samples(folder_.path() / "none"), SystemError);
  begin(1, 1);
  write(0, R"({"run":1,"ev)");
  EXPECT_TRUE(audited().epochs.empty());
  write(0, "\n");
  EXPECT_TRUE(audited().epochs.empty());
  begin(2, 1);
  batch(2, 0, 0, 0, 2, "3,1");
  EXPECT_EQ(audited().epochs.front().given, 2) << "the run that follows has ended it";
  write(0, "half\n");
  batch(2, 0, 0, 2, 4, "0,2");
  EXPECT_THROW(audit_samples(folder_.path()), CorruptFile);
}

}  // namespace
}  // namespace lockstep
