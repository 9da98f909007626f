#include "launcher/cli/run_options.h"

#include <csignal>
#include <cstdlib>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

LaunchOptions options_of(std::vector<std::string> arguments, const RunFacts& facts = {}) {
  arguments.emplace_back("./train");
  return resolve_run_options(parse_run_flags(arguments), facts);
}

std::string refusal_of(const std::vector<std::string>& arguments, const RunFacts& facts = {}) {
  try {
    options_of(arguments, facts);
    return "accepted";
  } catch (const UsageError& error) {
    return error.what();
  }
}

bool refuses(const std::vector<std::string>& arguments, const std::string& part) {
  const std::string message = refusal_of(arguments);
  EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return true;
}

TEST(RunOptions, DefaultsAreTorchruns) {
  const LaunchOptions options = options_of({}, {.random_id = "abc"});
  EXPECT_EQ(options.worker_count, 1);
  EXPECT_EQ(options.rendezvous.max_nodes, 1);
  EXPECT_EQ(options.max_restarts, 0);
  EXPECT_EQ(options.role, "default");
  EXPECT_EQ(options.run_id, "abc");
  EXPECT_EQ(options.shutdown_timeout, std::chrono::seconds(30));
  EXPECT_EQ(options.master_address, "127.0.0.1");
  EXPECT_EQ(options.master_port, 0);
  EXPECT_EQ(options.program.name, "./train");
  EXPECT_EQ(options.program.kind, Program::Kind::kExecutable);
  EXPECT_EQ(options.numa_binding, NumaBinding::kNone);
  EXPECT_TRUE(options.copied_out.selects_none());
  EXPECT_FALSE(options.prints_events);
}

TEST(RunOptions, EveryFlagOfTorchrunIsKnown) {
  const LaunchOptions options = options_of({"--standalone",
                                            "--nproc_per_node=2",
                                            "--nnodes=1:1",
                                            "--node_rank=0",
                                            "--rdzv_backend=c10d",
                                            "--rdzv_endpoint=localhost:0",
                                            "--rdzv_id=job",
                                            "--rdzv_conf=timeout=3,join_timeout=5",
                                            "--max_restarts=3",
                                            "--monitor_interval=0.1",
                                            "--start_method=spawn",
                                            "--event_log_handler=console",
                                            "--role=trainer",
                                            "--no_python",
                                            "--log_dir=logs",
                                            "--redirects=0:1",
                                            "--tee=3",
                                            "--local_ranks_filter=0,1",
                                            "--master_addr=localhost",
                                            "--master_port=0",
                                            "--local_addr=localhost",
                                            "--signals_to_handle=SIGTERM,USR1",
                                            "--shutdown_timeout=2.5",
                                            "--virtual_local_rank",
                                            "--numa_binding=core-complex",
                                            "--duplicate_stdout_filters=a,,b,c",
                                            "--duplicate_stderr_filters=d",
                                            "--logs_specs=default"});
  EXPECT_EQ(options.worker_count, 2);
  EXPECT_EQ(options.run_id, "job");
  EXPECT_EQ(options.max_restarts, 3);
  EXPECT_EQ(options.role, "trainer");
  EXPECT_EQ(options.log_directory, "logs");
  EXPECT_EQ(options.redirects.of(0), (Streams{true, false}));
  EXPECT_EQ(options.tee.of(7), (Streams{true, true}));
  EXPECT_EQ(options.console_ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(options.signals_to_handle, (std::vector<int>{SIGTERM, SIGUSR1}));
  EXPECT_EQ(options.shutdown_timeout, std::chrono::milliseconds(2500));
  EXPECT_TRUE(options.virtual_local_rank);
  EXPECT_EQ(options.numa_binding, NumaBinding::kCoreComplex);
  EXPECT_EQ(options.copied_out.texts(), (std::vector<std::string>{"a,b", "c"}));
  EXPECT_EQ(options.copied_err.texts(), (std::vector<std::string>{"d"}));
  EXPECT_TRUE(options.prints_events);
}

TEST(RunOptions, FlagBeatsEnvironmentBeatsDefault) {
  ::setenv("PET_NPROC_PER_NODE", "3", 1);
  ::setenv("PET_STANDALONE", "1", 1);
  ::setenv("PET_MASTER_PORT", "", 1);
  EXPECT_EQ(options_of({}).worker_count, 3);
  EXPECT_EQ(options_of({"--nproc-per-node=2"}).worker_count, 2);
  EXPECT_TRUE(refuses({"--nnodes=2"}, "--standalone is for one machine"));
  for (const char* name : {"PET_NPROC_PER_NODE", "PET_STANDALONE", "PET_MASTER_PORT"}) {
    ::unsetenv(name);
  }
  EXPECT_EQ(options_of({}, {.shutdown_timeout = "7"}).shutdown_timeout, std::chrono::seconds(7));
  EXPECT_EQ(options_of({"--shutdown-timeout=2"}, {.shutdown_timeout = "7"}).shutdown_timeout,
            std::chrono::seconds(2));
}

TEST(RunOptions, CountsWorkersByDevices) {
  const RunFacts cpus_only{.allowed_cpus = 6};
  const RunFacts with_gpus{.allowed_cpus = 6, .gpus = 4};
  EXPECT_EQ(options_of({"--nproc-per-node=cpu"}, with_gpus).worker_count, 6);
  EXPECT_EQ(options_of({"--nproc-per-node=gpu"}, with_gpus).worker_count, 4);
  EXPECT_EQ(options_of({"--nproc-per-node=auto"}, with_gpus).worker_count, 4);
  EXPECT_EQ(options_of({"--nproc-per-node=auto"}, cpus_only).worker_count, 6);
  EXPECT_TRUE(refuses({"--nproc-per-node=gpu"}, "no GPU"));
  for (const char* bad : {"0", "-1", "two", "2x", "1e3"}) {
    EXPECT_TRUE(refuses({"--nproc-per-node", bad}, "--nproc-per-node='" + std::string(bad) + "'"));
  }
}

TEST(RunOptions, ProgramsAreRunByTheirKind) {
  const auto kind = [](const std::vector<std::string>& arguments) {
    return resolve_run_options(parse_run_flags(arguments), {}).program.kind;
  };
  EXPECT_EQ(kind({"a.py"}), Program::Kind::kPythonScript);
  EXPECT_EQ(kind({"--no-python", "a.py"}), Program::Kind::kExecutable);
  EXPECT_EQ(kind({"-m", "package.train"}), Program::Kind::kPythonModule);
  EXPECT_EQ(kind({"--run-path", "train"}), Program::Kind::kPythonScript);
  EXPECT_TRUE(refuses({"-m", "--no-python"}, "drop one"));
  EXPECT_THROW(kind({"--standalone"}), UsageError);
}

TEST(RunOptions, OneMachineServesTheStoreWhereItIsTold) {
  EXPECT_EQ(options_of({"--master-port=4000"}).master_port, 4000);
  EXPECT_EQ(options_of({"--standalone", "--master-port=4000"}).master_port, 4000);
  EXPECT_EQ(options_of({"--standalone", "--master-addr=10.0.0.1"}).master_address, "127.0.0.1");
  EXPECT_EQ(options_of({"--master-addr=10.0.0.1"}).master_address, "10.0.0.1");
  EXPECT_EQ(options_of({"--local-addr=10.0.0.1"}).master_address, "10.0.0.1");
  const LaunchOptions endpoint = options_of({"--rdzv-endpoint=[::1]:4001", "--master-port=4000"});
  EXPECT_EQ(endpoint.master_address, "::1");
  EXPECT_EQ(endpoint.master_port, 4001);
  EXPECT_EQ(options_of({"--rdzv-endpoint=::1"}).master_address, "::1");
}

TEST(RunOptions, SeveralMachinesMeetAtTheFirst) {
  const RunFacts facts{.random_id = "abc", .secret = "secret"};
  const LaunchOptions options = options_of(
      {"--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1", "--max-restarts=2"}, facts);
  EXPECT_EQ(options.rendezvous.backend, RendezvousOptions::Backend::kStatic);
  EXPECT_EQ(options.rendezvous.min_nodes, 2);
  EXPECT_EQ(options.rendezvous.max_nodes, 2);
  EXPECT_EQ(options.rendezvous.node_rank, 1);
  EXPECT_EQ(options.rendezvous.is_host, false);
  EXPECT_EQ(options.rendezvous.host, "10.0.0.1");
  EXPECT_EQ(options.rendezvous.port, 29500);
  EXPECT_EQ(options.rendezvous.secret, "secret");
  EXPECT_EQ(options.max_restarts, 2);
  EXPECT_EQ(options.run_id, "none") << "all machines must have the same id";
}

TEST(RunOptions, MachinesThatComeAndGoMeetAtTheEndpoint) {
  const LaunchOptions options =
      options_of({"--nnodes=1:3", "--rdzv-backend=c10d", "--rdzv-endpoint=a", "--local-addr=b",
                  "--rdzv-conf=join_timeout=5,last_call_timeout=0.5,keep_alive_interval=2,"
                  "keep_alive_max_attempt=4,is_host=True,read_timeout=60"},
                 {.secret = "secret"});
  EXPECT_EQ(options.rendezvous.backend, RendezvousOptions::Backend::kC10d);
  EXPECT_EQ(options.rendezvous.min_nodes, 1);
  EXPECT_EQ(options.rendezvous.max_nodes, 3);
  EXPECT_EQ(options.rendezvous.port, 29400);
  EXPECT_EQ(options.rendezvous.own_address, "b");
  EXPECT_EQ(options.rendezvous.is_host, true);
  EXPECT_EQ(options.rendezvous.timeouts.join, std::chrono::seconds(5));
  EXPECT_EQ(options.rendezvous.timeouts.last_call, std::chrono::milliseconds(500));
  EXPECT_EQ(options.rendezvous.timeouts.keep_alive_interval, std::chrono::seconds(2));
  EXPECT_EQ(options.rendezvous.timeouts.keep_alive_limit, std::chrono::seconds(8));
}

TEST(RunOptions, MachinesMeetByWayOfEtcd) {
  const LaunchOptions options =
      options_of({"--nnodes=2:3", "--rdzv-backend=etcd", "--rdzv-endpoint=localhost,[::1]:7",
                  "--rdzv-id=a", "--rdzv-conf=etcd_prefix=/jobs,protocol=http"});
  EXPECT_EQ(options.rendezvous.backend, RendezvousOptions::Backend::kEtcd);
  EXPECT_EQ(options.rendezvous.etcd, (std::vector<HostAndPort>{{"localhost", 2379}, {"::1", 7}}));
  EXPECT_EQ(options.rendezvous.etcd_prefix, "/jobs");
  EXPECT_EQ(options_of({"--rdzv-backend=etcd"}).rendezvous.max_nodes, 1);
}

TEST(RunOptions, MachinesInANetworkNeedASecret) {
  EXPECT_TRUE(refuses({"--nnodes=2", "--master-addr=10.0.0.1"}, "LOCKSTEP_JOB_SECRET"));
  EXPECT_TRUE(refuses({"--nnodes=2", "--master-addr=127.example.org"}, "LOCKSTEP_JOB_SECRET"));
  EXPECT_TRUE(refuses({"--rdzv-conf=keep_alive_interval=0.0001"}, "give seconds from 0.001"));
  for (const char* host : {"127.0.0.1", "127.1.2.3", "localhost", "::1"}) {
    EXPECT_EQ(options_of({"--nnodes=2", "--master-addr", host}).rendezvous.host, host);
  }
}

TEST(RunOptions, RefusesRendezvousThatCannotWork) {
  const std::string two = "--nnodes=2";
  EXPECT_TRUE(refuses({two}, "needs --master-addr"));
  EXPECT_TRUE(refuses({two, "--node-rank=2", "--master-addr=a"}, "node ranks are 0 to 1"));
  EXPECT_TRUE(refuses({"--node-rank=1"}, "node ranks are 0 to 0"));
  EXPECT_TRUE(refuses({two, "--rdzv-backend=c10d"}, "needs --rdzv-endpoint"));
  EXPECT_TRUE(refuses({two, "--standalone"}, "--standalone is for one machine"));
  EXPECT_TRUE(refuses({two, "--master-addr=a", "--master-port=0"}, "port 0"));
  EXPECT_TRUE(refuses({"--nnodes=1:2"}, "--rdzv-backend=c10d"));
  EXPECT_TRUE(refuses({"--nnodes=2:1"}, "--nnodes='2:1'"));
  EXPECT_TRUE(refuses({"--nnodes=0"}, "--nnodes='0'"));
  EXPECT_TRUE(refuses({"--rdzv-backend=zeus"}, "unknown backend"));
  const std::string etcd = "--rdzv-backend=etcd";
  EXPECT_TRUE(refuses({two, etcd, "--rdzv-endpoint=localhost"}, "needs --rdzv-id"));
  EXPECT_TRUE(refuses({two, etcd, "--rdzv-id=a"}, "needs --rdzv-endpoint"));
  EXPECT_TRUE(refuses({two, etcd, "--rdzv-id=a", "--rdzv-endpoint=localhost,10.0.0.1"},
                      "LOCKSTEP_JOB_SECRET"));
  EXPECT_TRUE(refuses({"--rdzv-conf=protocol=https"}, "etcd gateway"));
  EXPECT_TRUE(refuses({"--rdzv-endpoint=:1"}, "HOST:PORT"));
  EXPECT_TRUE(refuses({"--rdzv-endpoint=[::1"}, "give [IPV6]:PORT, with the ]"));
  EXPECT_TRUE(refuses({"--rdzv-endpoint=a:70000"}, "'70000' is no port"));
  EXPECT_TRUE(refuses({"--master-port=http"}, "'http' is no port"));
  EXPECT_TRUE(refuses({"--rdzv-conf=join_timout=3"}, "did you mean join_timeout?"));
  EXPECT_TRUE(refuses({"--rdzv-conf=x"}, "not KEY=VALUE"));
  EXPECT_TRUE(refuses({"--rdzv-conf=join_timeout=0"}, "join_timeout='0'"));
  EXPECT_TRUE(refuses({"--rdzv-conf=keep_alive_max_attempt=x"}, "keep_alive_max_attempt='x'"));
  EXPECT_TRUE(refuses({"--rdzv-conf=is_host=maybe"}, "is_host=maybe"));
}

TEST(RunOptions, RefusesValuesThatMakeNoSense) {
  EXPECT_TRUE(refuses({"--max-restarts=-1"}, "--max-restarts='-1'"));
  EXPECT_TRUE(refuses({"--shutdown-timeout=-1"}, "--shutdown-timeout='-1'"));
  EXPECT_TRUE(refuses({"--shutdown-timeout=nan"}, "--shutdown-timeout='nan'"));
  EXPECT_TRUE(refuses({"--monitor-interval=0"}, "--monitor-interval='0'"));
  EXPECT_TRUE(refuses({"--signals-to-handle=SIGKILL"}, "'SIGKILL'"));
  EXPECT_TRUE(refuses({"--signals-to-handle=SIGTREM"}, "'SIGTREM'"));
  EXPECT_TRUE(refuses({"--redirects=4"}, "--redirects='4'"));
  EXPECT_TRUE(refuses({"--tee=x"}, "--tee='x'"));
  EXPECT_TRUE(refuses({"--local-ranks-filter=a"}, "--local-ranks-filter='a'"));
  EXPECT_TRUE(refuses({"--start-method=thread"}, "--start-method='thread'"));
  EXPECT_NE(refusal_of({}, {.shutdown_timeout = "soon"}).find("TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
            std::string::npos);
}

TEST(RunOptions, RefusesPluginsOfTorchrun) {
  EXPECT_TRUE(refuses({"--logs-specs=mine"}, "only default"));
  EXPECT_TRUE(refuses({"--event-log-handler=mine"}, "give null or console"));
  EXPECT_TRUE(refuses({"--numa-binding=nodes"}, "node, socket, exclusive or core-complex"));
}

TEST(RunFlags, HelpTeaches) {
  const std::string help = parse_run_flags({"--help"}).help;
  for (const char* part : {"--nproc-per-node", "Examples:", "OMP_NUM_THREADS", "Exit code"}) {
    EXPECT_NE(help.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(parse_run_flags({"./train", "--help"}).help, "") << "that is for the program";
}

}  // namespace
}  // namespace lockstep
