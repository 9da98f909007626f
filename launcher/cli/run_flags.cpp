#include "launcher/cli/run_flags.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <CLI/CLI.hpp>

#include "launcher/command_line/command_help.h"
#include "launcher/command_line/split_arguments.h"
#include "lockstep/base/error.h"

namespace lockstep::inline internal {
namespace {

constexpr const char* kUsage = "[options] program [arguments of the program]";

constexpr const char* kDescription =
    R"(Starts the workers of a training job and watches them. If a worker fails, lockstep reports it and
stops the others; with --max-restarts it restarts all or, with Accelerator, Trainer or
ResilientTraining, replaces only the failed one.
Options and the workers' environment are torchrun's: --nproc_per_node equals --nproc-per-node, a
unique prefix of a torchrun flag is enough (--nproc), and PET_<NAME> sets a default
(PET_NPROC_PER_NODE=2).

  lockstep run --standalone --nproc-per-node=2 ./train --epochs=10
  lockstep run --standalone --nproc-per-node=gpu --max-restarts=3 --tee=3 --log-dir=logs ./train
  lockstep run --hosts=a:8,b:8 --max-restarts=3 ./train      # two machines over ssh, 8 workers each)";

constexpr const char* kFooter = R"(Environment of workers:
  RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and torchrun's other
  variables; OMP_NUM_THREADS, unless it is set: processors divided by workers of this machine.
  "${local_rank}" in an argument of the program becomes the local rank.
  Lockstep runs programs that end in .py with python3 -u, and executes all others.

Exit code:
  0        all workers succeeded
  75       preempted, state saved
  2        wrong command line
  128 + N  signal N stopped the job
  otherwise the exit code of the first worker that failed (128 + N if signal N killed it)

Examples:
  lockstep run --standalone --nproc-per-node=2 train.py          # a Python program
On each machine, with one secret (umask 077; openssl rand -hex 32 > job.secret):
  lockstep run --nnodes=2:4 --rdzv-backend=c10d --rdzv-endpoint=10.0.0.1 --secret-file=job.secret \
    --nproc-per-node=8 --max-restarts=3 ./train
With --node-rank, which differs on each machine:
  lockstep run --nnodes=2 --node-rank=0 --master-addr=10.0.0.1 --secret-file=job.secret ./train
  lockstep run --nnodes=2 --node-rank=1 --master-addr=10.0.0.1 --secret-file=job.secret ./train
Under SLURM or MPICH, after exporting LOCKSTEP_JOB_SECRET (Open MPI needs --master-addr too):
  srun --ntasks-per-node=1 lockstep run --nproc-per-node=8 ./train
  mpirun -n 2 -ppn 1 lockstep run --nproc-per-node=8 ./train)";

// A unique prefix stands for a flag of torchrun's first: Lockstep's own are written in full.
constexpr std::array kInFull = {"hosts", "ssh-command", "remote-lockstep", "env", "standby"};

// PET_NPROC_PER_NODE for nproc-per-node, as in torchrun.
std::string variable_of(std::string flag) {
  for (char& c : flag) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return "PET_" + flag;
}

class FlagTable {
 public:
  explicit FlagTable(CLI::App& app) : app_(app) {}

  void group(const char* name) { group_ = name; }

  void text(const std::string& names, std::string& value, const char* type, const char* help) {
    finish(app_.add_option(names, value, help)->type_name(type));
  }
  void texts(const std::string& names, std::vector<std::string>& values, const char* type,
             const char* help) {
    CLI::Option* const option = app_.add_option(names, values, help);
    finish(option->type_name(type)->allow_extra_args(false));
  }
  void flag(const std::string& names, bool& value, const char* help) {
    finish(app_.add_flag(names, value, help));
  }

 private:
  void finish(CLI::Option* option) {
    option->group(group_)->envname(variable_of(option->get_lnames().front()));
  }

  CLI::App& app_;
  const char* group_ = "";
};

void add_flags(CLI::App& app, RunFlags& flags) {
  FlagTable table(app);
  table.group("Common options");
  table.text(
      "--nproc-per-node", flags.nproc_per_node, "N|auto|cpu|gpu",
      "workers on this machine (default 1); gpu: one per GPU;\ncpu: one per processor; auto: "
      "gpu if there is one, else cpu");
  table.flag("--standalone", flags.standalone,
             "run on this machine only, with a rendezvous on a free\nloopback port");
  table.text(
      "--nnodes", flags.nnodes, "N|MIN:MAX",
      "machines (default 1); MIN:MAX: machines may join and\nleave a running job (c10d, etcd)");
  table.text(
      "--hosts", flags.hosts, "FILE|LIST",
      "start the job on these machines over ssh: a:8,b:8, or\na file with lines \"a slots=8\"");
  table.text("--max-restarts", flags.max_restarts, "N",
             "maximum number of restarts after failures, counted over\nall machines (default 0)");
  table.text(
      "--standby", flags.standby, "N",
      "spare workers per machine, started in advance; they\nreplace failed ones; for programs "
      "with Accelerator,\nTrainer or ResilientTraining (default 0)");
  table.text("--log-dir", flags.log_dir, "DIR",
             "directory of log files: DIR/<id>_<random>/attempt_<n>/\n<local rank>/stdout.log, "
             "stderr.log, error.json");
  table.text(
      "-r,--redirects", flags.redirects, "0|1|2|3|MAP",
      "write to log files instead of the console: 1 stdout,\n2 stderr, 3 both; per local rank: "
      "0:1,1:3");
  table.text("-t,--tee", flags.tee, "0|1|2|3|MAP",
             "write to log files and the console, each line prefixed\nwith role and local rank "
             "([default0]:)");
  table.text("--rdzv-id", flags.rdzv_id, "ID",
             "id of the job, equal on all machines (default: random on\none machine, \"none\" on "
             "several); TORCHELASTIC_RUN_ID of\nworkers");

  table.group("Program");
  table.flag("-m,--module", flags.module, "the program is a Python module, as in python -m");
  table.flag("--no-python", flags.no_python, "execute the program even if its name ends in .py");
  table.flag("--run-path", flags.run_path, "the program is a Python script, whatever its name");
  table.text("--role", flags.role, "NAME",
             "role of the workers, in log prefixes (default \"default\")");
  table.flag("--virtual-local-rank", flags.virtual_local_rank,
             "each worker sees one device and LOCAL_RANK=0");
  table.text("--numa-binding", flags.numa_binding, "MODE",
             "bind each worker to processors (default: not bound)\n"
             "node: the NUMA node of its GPU\n"
             "socket: the socket of its GPU\n"
             "exclusive: a part of that NUMA node, for this worker alone\n"
             "core-complex: cores of that NUMA node with one last-level cache\n"
             "With too few GPUs, local ranks spread over the NUMA nodes.");

  table.group("Several machines: start the launcher on each");
  table.text(
      "--rdzv-backend", flags.rdzv_backend, "static|c10d|etcd",
      "static (default): --node-rank numbers the machines;\nc10d: the rendezvous numbers them as "
      "they join, and a lost\nmachine can be replaced; etcd: as c10d, and the machine\nthat serves "
      "the rendezvous can be replaced too");
  table.text("--rdzv-endpoint", flags.rdzv_endpoint, "HOST[:PORT]",
             "address of the machine that serves the rendezvous (port\n29400), or of etcd, a "
             "comma-separated list (port 2379)");
  table.text("--node-rank", flags.node_rank, "K", "static: rank of this machine, from 0");
  table.text("--master-addr", flags.master_addr, "HOST",
             "static: address of the machine with rank 0, instead of\n--rdzv-endpoint");
  table.text("--master-port", flags.master_port, "PORT",
             "port of --master-addr (default 29500); on one machine:\nport of the job's store "
             "(default: any free port)");
  table.text("--local-addr", flags.local_addr, "HOST",
             "address at which the other machines reach this one\n(default: the source address of "
             "the route to the endpoint)");
  table.text("--secret-file", flags.secret_file, "FILE",
             "the job's secret, equal on all machines; or set\nLOCKSTEP_JOB_SECRET");
  table.text("--rdzv-conf", flags.rdzv_conf, "KEY=VALUE,...",
             "settings of the rendezvous; timeouts in seconds:\n"
             "join_timeout or timeout: for machines to join (600)\n"
             "last_call_timeout: for more machines after MIN (30)\n"
             "keep_alive_interval: between heartbeats (5)\n"
             "keep_alive_max_attempt: missed heartbeats until a\nmachine is lost (6)\n"
             "is_host: 1 if this machine serves the rendezvous, else 0\n"
             "etcd_prefix: first part of etcd's keys");

  table.group("Several machines over ssh, with --hosts");
  table.text("--ssh-command", flags.ssh_command, "COMMAND",
             "command before the machine's name (default: ssh with\noptions that never prompt)");
  table.text("--remote-lockstep", flags.remote_lockstep, "PATH",
             "lockstep on the machines (default: the path of this one)");
  table.texts("--env", flags.env, "NAME[=VALUE]",
              "pass a variable to the workers, besides LOCKSTEP_* and\nPET_*; repeatable");

  table.group("Failures and preemption");
  table.text("--shutdown-timeout", flags.shutdown_timeout, "SECONDS",
             "grace period from SIGTERM to SIGKILL (default 30)");
  table.text("--signals-to-handle", flags.signals_to_handle, "NAME,...",
             "signals that stop the job, forwarded to the workers\n(default "
             "SIGTERM,SIGINT,SIGHUP,SIGQUIT)");
  table.text(
      "--notify-signals", flags.notify_signals, "NAME,...",
      "preemption notices: forwarded to the workers; they do\nnot stop the job, e.g. SIGUSR1 "
      "from SLURM (default none)");
  table.text("--monitor-interval", flags.monitor_interval, "SECONDS",
             "accepted and ignored: Lockstep sees a worker's end at once");

  table.group("Output");
  table.text("--local-ranks-filter", flags.local_ranks_filter, "RANK,...",
             "local ranks whose output reaches the console (default all)");
  table.text("--duplicate-stdout-filters", flags.duplicate_stdout_filters, "TEXT,...",
             "copy --tee lines that contain one of the texts to\nattempt_<n>/filtered_stdout.log; "
             "\",,\" is a comma");
  table.text("--duplicate-stderr-filters", flags.duplicate_stderr_filters, "TEXT,...",
             "the same for stderr, to filtered_stderr.log");
  table.text("--event-log-handler", flags.event_log_handler, "null|console",
             "console: print torchrun's events, JSON lines on stderr");

  table.group("");  // Hidden: flags of torchrun that have no use here.
  table.text("--start-method", flags.start_method, "NAME", "");
  table.text("--logs-specs", flags.logs_specs, "NAME", "");
}

std::vector<FlagName> names_of(const CLI::App& app) {
  std::vector<FlagName> names;
  for (const CLI::Option* option : app.get_options()) {
    const auto& letters = option->get_snames();
    names.push_back({.name = option->get_lnames().front(),
                     .letter = letters.empty() ? '\0' : letters.front().front(),
                     .takes_value = option->get_items_expected_max() != 0,
                     .in_full = std::ranges::count(kInFull, option->get_lnames().front()) > 0});
  }
  return names;
}

}  // namespace

RunFlags parse_run_flags(const std::vector<std::string>& arguments) {
  RunFlags flags;
  CLI::App app(kDescription, "lockstep run");
  app.footer(kFooter);
  app.set_help_flag("-h,--help", "show this text")->group("Common options");
  add_flags(app, flags);
  CommandHelp help = help_of(app);
  help.usage = kUsage;
  if (arguments == std::vector<std::string>{kDescribeCommand}) {
    flags.help = describe(help);
    return flags;
  }

  SplitArguments split = split_arguments(arguments, names_of(app));
  flags.program = std::move(split.program);
  flags.given = split.flags;
  std::reverse(split.flags.begin(), split.flags.end());  // The order that parse() takes.
  try {
    app.parse(split.flags);
  } catch (const CLI::CallForHelp&) {
    flags.help = help_text(help);
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  return flags;
}

}  // namespace lockstep::inline internal
