#include "launcher/status/running_jobs.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

RunningJob job(pid_t pid, const std::string& id) {
  return {.pid = pid, .status = JobStatus{.job = id, .is_named = true, .pid = pid}};
}

std::vector<RunningJob> named(std::vector<RunningJob> jobs) {
  name_jobs(jobs);
  return jobs;
}

std::string refusal(const std::vector<RunningJob>& jobs, const std::string& text) {
  try {
    find_job(jobs, text);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(RunningJobs, AreCalledByTheIdThatOnlyOneHas) {
  const auto jobs = named({job(1, "a"), job(2, "b"), job(3, "b"), job(4, "1"), {.pid = 5}});
  EXPECT_EQ(jobs[0].name, "a");
  EXPECT_EQ(jobs[1].name, "2");
  EXPECT_EQ(jobs[2].name, "3");
  EXPECT_EQ(jobs[3].name, "4") << "1 is the pid of another";
  EXPECT_EQ(jobs[4].name, "5");
}

TEST(RunningJobs, WithoutAGivenIdAreCalledByTheirPid) {
  auto jobs = named({job(1, "a")});
  jobs[0].status->is_named = false;
  name_jobs(jobs);
  EXPECT_EQ(jobs[0].name, "1");
}

TEST(RunningJobs, AreFoundByNamePidAndId) {
  const auto jobs = named({job(1, "a"), job(2, "b")});
  EXPECT_EQ(find_job(jobs, "b").pid, 2);
  EXPECT_EQ(find_job(jobs, "1").pid, 1);
  EXPECT_EQ(refusal(jobs, "c"), "no job here is called 'c'; there are: a, b");
}

TEST(RunningJobs, NeedNoNameWhereThereIsOne) {
  EXPECT_EQ(find_job(named({job(1, "a")}), "").pid, 1);
  EXPECT_EQ(refusal({}, ""), "no job of this user runs here");
  EXPECT_EQ(refusal(named({job(1, "a"), job(2, "b")}), ""),
            "2 jobs run here; name one of them: a, b");
}

TEST(RunningJobs, WithSeveralLaunchersAreNotChosenByChance) {
  EXPECT_EQ(refusal(named({job(1, "a"), job(2, "a")}), "a"),
            "job 'a' has 2 launchers here; name one of them: 1, 2");
}

}  // namespace
}  // namespace lockstep
