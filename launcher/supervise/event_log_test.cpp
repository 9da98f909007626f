#include "launcher/supervise/event_log.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

const EventSource kSource{.run_id = "job",
                          .role = "trainer",
                          .hostname = "node",
                          .rdzv_backend = "c10d",
                          .entry_point = "train",
                          .group_rank = 1,
                          .group_world_size = 2,
                          .role_world_size = 8};

// The form is torchrun's, as recorded from it; python.torchrun_flags compares with it as it runs.
TEST(EventLog, TheLaunchersEventsHaveTorchrunsForm) {
  EXPECT_EQ(event_line(kSource, {.state = "RENDEZVOUS",
                                 .timestamp_ms = 12,
                                 .total_run_time_s = 3,
                                 .restarts = 2,
                                 .duration_ms = 1.5}),
            R"({"name":"torchelastic.worker.status.RENDEZVOUS","source":"AGENT","timestamp":12,)"
            R"("metadata":{"run_id":"job","global_rank":null,"group_rank":1,"worker_id":null,)"
            R"("role":"trainer","hostname":"node","state":"RENDEZVOUS","total_run_time":3,)"
            R"("rdzv_backend":"c10d","raw_error":null,)"
            R"("metadata":"{\"group_world_size\":2,\"entry_point\":\"train\"}",)"
            R"("agent_restarts":2,"duration_ms":1.5}})");
}

TEST(EventLog, AWorkersEventsHaveTorchrunsForm) {
  const WorkerExit worker{.rank = 5, .local_rank = 1, .pid = 77, .signal = 9};
  EXPECT_EQ(event_line(kSource, {.state = "FAILED",
                                 .error = R"({"message":"bad"})",
                                 .worker = &worker,
                                 .worker_failed = true}),
            R"({"name":"torchelastic.worker.status.FAILED","source":"WORKER","timestamp":0,)"
            R"("metadata":{"run_id":"job","global_rank":5,"group_rank":1,"worker_id":"77",)"
            R"("role":"trainer","hostname":"node","state":"FAILED","total_run_time":0,)"
            R"("rdzv_backend":"c10d","raw_error":"{\"message\":\"bad\"}",)"
            R"("metadata":"{\"group_world_size\":2,\"entry_point\":\"train\",\"local_rank\":[1],)"
            R"(\"role_rank\":[5],\"role_world_size\":[8],\"exit_code\":[-9],\"worker_pid\":[77]}",)"
            R"("agent_restarts":0,"duration_ms":null}})");
}

}  // namespace
}  // namespace lockstep
