// What each worker runs and where its output goes.
#include <gtest/gtest.h>

#include "launcher/job/stream_map.h"
#include "launcher/job/worker_command.h"
#include "launcher/logs/worker_logs.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Target = StreamPlan::Target;

TEST(Substitute, ReplacesOnlyNamesThatHaveAValue) {
  const std::map<std::string, std::string> values = {{"local_rank", "3"}, {"empty", ""}};
  EXPECT_EQ(substitute("--id=${local_rank}/${local_rank}", values), "--id=3/3");
  EXPECT_EQ(substitute("${other}${local_rank}", values), "${other}3");
  EXPECT_EQ(substitute("${${local_rank}}", values), "${3}");
  EXPECT_EQ(substitute("a${empty}b", values), "ab");
  for (const char* text : {"", "$local_rank", "${local_rank", "$", "${", "}", "{local_rank}"}) {
    EXPECT_EQ(substitute(text, values), text);
  }
}

TEST(WorkerCommand, RunsProgramsByTheirKind) {
  using Kind = Program::Kind;
  using Argv = std::vector<std::string>;
  const Argv arguments = {"--rank=${local_rank}", "-x"};
  EXPECT_EQ(worker_command({Kind::kExecutable, "./a.py", arguments}, "python3", 2),
            (Argv{"./a.py", "--rank=2", "-x"}));
  EXPECT_EQ(worker_command({Kind::kPythonScript, "a.py", arguments}, "python3", 0),
            (Argv{"python3", "-u", "a.py", "--rank=0", "-x"}));
  EXPECT_EQ(worker_command({Kind::kPythonModule, "a.b", arguments}, "/opt/py", 1),
            (Argv{"/opt/py", "-u", "-m", "a.b", "--rank=1", "-x"}));
}

TEST(StreamMap, ReadsOneValueForAllOrOneForEach) {
  for (int value = 0; value <= 3; ++value) {
    const Streams streams{(value & 1) != 0, (value & 2) != 0};
    EXPECT_EQ(parse_stream_map("--tee", std::to_string(value)).of(5), streams);
    EXPECT_EQ(parse_stream_map("--tee", "5:" + std::to_string(value)).of(5), streams);
  }
  const StreamMap map = parse_stream_map("--tee", "0:1,2:2");
  EXPECT_EQ(map.of(0), (Streams{true, false}));
  EXPECT_EQ(map.of(1), Streams{});
  EXPECT_EQ(map.of(2), (Streams{false, true}));
}

TEST(StreamMap, RefusesAnythingElse) {
  for (const char* text :
       {"", "4", "-1", "x", "0:4", "0:", ":1", "0:1,3", "-1:1", "0:1;1:2", "1 "}) {
    EXPECT_THROW(parse_stream_map("--tee", text), UsageError) << text;
  }
}

TEST(WorkerLogs, RedirectsAndTeesGoToFiles) {
  LaunchOptions options;
  const auto plan = [&](int local_rank) { return plan_worker_logs(options, local_rank); };
  EXPECT_EQ(plan(0).out, (StreamPlan{Target::kConsole}));
  EXPECT_FALSE(writes_logs(options));

  options.redirects = parse_stream_map("--redirects", "0:1");
  options.tee = parse_stream_map("--tee", "0:3");
  EXPECT_EQ(plan(0).out, (StreamPlan{Target::kFile, true}));
  EXPECT_EQ(plan(0).err, (StreamPlan{Target::kFile, true}));
  EXPECT_EQ(plan(1).out, (StreamPlan{Target::kConsole}));
  options.tee = StreamMap();
  EXPECT_EQ(plan(0).out, (StreamPlan{Target::kFile, false}));
  EXPECT_EQ(plan(0).err, (StreamPlan{Target::kConsole}));
  EXPECT_TRUE(writes_logs(options));
}

TEST(WorkerLogs, TheFilterConcernsTheConsoleOnly) {
  LaunchOptions options;
  options.console_ranks = {1};
  options.tee = parse_stream_map("--tee", "1");
  EXPECT_EQ(plan_worker_logs(options, 0).out, (StreamPlan{Target::kFile, false}));
  EXPECT_EQ(plan_worker_logs(options, 0).err, (StreamPlan{Target::kNowhere}));
  EXPECT_EQ(plan_worker_logs(options, 1).out, (StreamPlan{Target::kFile, true}));
  EXPECT_EQ(plan_worker_logs(options, 1).err, (StreamPlan{Target::kConsole}));
}

TEST(WorkerLogs, DevNullTakesNoLogs) {
  LaunchOptions options;
  options.log_directory = "/dev/null";
  options.redirects = parse_stream_map("--redirects", "1");
  EXPECT_EQ(plan_worker_logs(options, 0).out, (StreamPlan{Target::kNowhere}));
  EXPECT_EQ(plan_worker_logs(options, 0).err, (StreamPlan{Target::kConsole}));
  EXPECT_FALSE(writes_logs(options));
}

TEST(WorkerLogs, NamesAreTorchruns) {
  LaunchOptions options;
  options.worker_count = 2;
  EXPECT_EQ(worker_directory("/logs/job_x", 2, 1), "/logs/job_x/attempt_2/1");
  EXPECT_EQ(log_line_prefix("[${role_name}${local_rank}]:", options, 1, 3), "[default1]:");
  EXPECT_EQ(log_line_prefix("${rank}|", options, 1, 3), "3|");
}

}  // namespace
}  // namespace lockstep
