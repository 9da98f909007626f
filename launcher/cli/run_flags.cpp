#include "launcher/cli/run_flags.h"

#include <algorithm>
#include <cctype>
#include <memory>

#include <CLI/CLI.hpp>

#include "launcher/command_line/split_arguments.h"
#include "lockstep/base/error.h"

namespace lockstep::inline internal {
namespace {

constexpr const char* kUsage = "lockstep run [flags] program [arguments of the program]";

constexpr const char* kDescription =
    "Starts a program on several processes that train together, and looks after them: when one\n"
    "fails, or a machine is lost, all are stopped, the first to fail is named, and all are "
    "started\n"
    "again if --max-restarts allows it. Flags and the environment given to workers are "
    "torchrun's;\n"
    "--nproc_per_node is the same as --nproc-per-node, a beginning that is of one flag only is\n"
    "enough (--nproc), and each flag has a default in the environment: PET_NPROC_PER_NODE=2.";

// These have to be written in full: what abbreviates torchrun's flags goes on meaning them.
constexpr const char* kBySsh =
    "Several machines: the command on one, which starts it on each by ssh";

constexpr const char* kFooter = R"(What workers get:
  RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and torchrun's others,
  "${local_rank}" replaced in their arguments, and OMP_NUM_THREADS, where it is not set, as the
  processors divided by the workers of this machine.
  Programs that end in .py are run by python3 -u, others are executed.

Exit code: 0 when all workers succeed, that of the first that failed (128 + n for signal n), 128 + n
when signal n stopped the job, 2 for a wrong command line.

Examples:
  lockstep run --standalone --nproc-per-node=2 ./train --epochs=10
  lockstep run --standalone --nproc-per-node=gpu --max-restarts=3 --tee=3 --log-dir=logs ./train
  lockstep run --standalone --nproc-per-node=2 train.py          # a Python program
On several machines, the same on each, with one secret made by:
  umask 077; openssl rand -hex 32 > job.secret
  lockstep run --nnodes=2:4 --rdzv-backend=c10d --rdzv-endpoint=10.0.0.1 --secret-file=job.secret \
    --nproc-per-node=8 --max-restarts=3 ./train
under Slurm, with LOCKSTEP_JOB_SECRET exported:
  srun --ntasks-per-node=1 lockstep run --nproc-per-node=8 ./train
under MPICH's mpirun likewise (Open MPI's needs --master-addr too):
  mpirun -n 2 -ppn 1 lockstep run --nproc-per-node=8 ./train
or all from one machine, which reaches them by ssh (docs/guides/ssh.md):
  lockstep run --hosts=a:8,b:8 --max-restarts=3 ./train
or, numbered:
  lockstep run --nnodes=2 --node-rank=0 --master-addr=10.0.0.1 --secret-file=job.secret ./train
  lockstep run --nnodes=2 --node-rank=1 --master-addr=10.0.0.1 --secret-file=job.secret ./train
)";

// PET_NPROC_PER_NODE for nproc-per-node, as in torchrun.
std::string variable_of(std::string flag) {
  for (char& c : flag) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return "PET_" + flag;
}

// Leaves out the variables: they follow from the flags' names.
class HelpFormat : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_items_expected_max() == 0 ? "" : "=" + option->get_type_name();
  }
  std::string make_usage(const CLI::App*, std::string) const override {
    return std::string("Usage: ") + kUsage + "\n";
  }
};

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
  table.group("What runs");
  table.text("--nproc-per-node", flags.nproc_per_node, "N|auto|cpu|gpu",
             "workers on this machine (default 1); auto: one for\neach GPU, else for each "
             "processor; gpu, cpu likewise");
  table.flag("--standalone", flags.standalone, "one machine, on loopback and a free port");
  table.flag("--no-python", flags.no_python, "execute the program even if its name ends in .py");
  table.flag("-m,--module", flags.module, "the program is a Python module, as in python -m");
  table.flag("--run-path", flags.run_path, "the program is a Python script whatever its name");
  table.text("--role", flags.role, "NAME", "name of the workers in logs (default \"default\")");
  table.flag("--virtual-local-rank", flags.virtual_local_rank,
             "each worker has LOCAL_RANK=0 and sees one device");
  table.text(
      "--numa-binding", flags.numa_binding, "MODE",
      "processors of each worker: node or socket, all of its\nGPU's; exclusive, a share of "
      "the node's cores; or\ncore-complex, cores with one cache. Without GPUs the\nnodes are "
      "divided by local rank (default: none is bound)");

  table.group("Several machines: the same command on each");
  table.text("--nnodes", flags.nnodes, "N|MIN:MAX",
             "number of machines (default 1); with MIN:MAX they may\njoin and leave while the job "
             "runs (c10d, etcd)");
  table.text("--rdzv-backend", flags.rdzv_backend, "static|c10d|etcd",
             "static (default): each machine has its --node-rank;\nc10d: they are numbered as they "
             "come, and may be\nreplaced; "
             "etcd: so may the one where the others meet");
  table.text("--rdzv-endpoint", flags.rdzv_endpoint, "HOST[:PORT]",
             "where the launchers meet: an address of one of the\nmachines (port 29400); "
             "of etcd one or more, between\ncommas (port 2379)");
  table.text("--node-rank", flags.node_rank, "K", "static: rank of this machine, from 0");
  table.text("--master-addr", flags.master_addr, "HOST",
             "static: another way to give the endpoint, an address\nof the machine with rank 0");
  table.text("--master-port", flags.master_port, "PORT",
             "its port (default 29500); on one machine that of the\njob's store (default: any "
             "free one)");
  table.text(
      "--local-addr", flags.local_addr, "HOST",
      "address of this machine for the others (default: the\none that leads to the endpoint)");
  table.text("--secret-file", flags.secret_file, "FILE",
             "by its content, the same on each, the machines of a\njob know each other; or give it "
             "in LOCKSTEP_JOB_SECRET");
  table.text(
      "--rdzv-id", flags.rdzv_id, "ID",
      "id of the job, the same on each (default none), and\nTORCHELASTIC_RUN_ID for workers");
  table.text("--rdzv-conf", flags.rdzv_conf, "KEY=VALUE,...",
             "join_timeout or timeout (600 s), last_call_timeout\n(30 s, for more than MIN), "
             "keep_alive_interval (5 s),\n"
             "keep_alive_max_attempt (6), is_host, etcd_prefix");

  table.group(kBySsh);
  table.text(
      "--hosts", flags.hosts, "FILE|LIST",
      "the machines: a file with a host a line, \"a slots=2\",\nor a:2,b:2; the number is that "
      "of the workers there");
  table.text("--ssh-command", flags.ssh_command, "COMMAND",
             "what comes before a host's name (default ssh with\noptions that ask for nothing)");
  table.text("--remote-lockstep", flags.remote_lockstep, "PATH",
             "lockstep on the machines (default: where it is here)");
  table.texts("--env", flags.env, "NAME[=VALUE]",
              "a variable for the workers there, besides LOCKSTEP_ and\nPET_; may be given often");

  table.group("Failures and stopping");
  table.text("--max-restarts", flags.max_restarts, "N",
             "start all workers again after a failure, at most\nthis often (default 0)");
  table.text(
      "--standby", flags.standby, "N",
      "keep N workers more on each machine, started and\nwaiting for the place of one that is "
      "lost; for programs\nwith ResilientTraining (default 0)");
  table.text("--shutdown-timeout", flags.shutdown_timeout, "SECONDS",
             "from telling workers to end to killing them (default 30)");
  table.text(
      "--signals-to-handle", flags.signals_to_handle, "NAME,...",
      "signals that stop the job, passed on to workers\n(default SIGTERM,SIGINT,SIGHUP,SIGQUIT)");
  table.text(
      "--notify-signals", flags.notify_signals, "NAME,...",
      "signals that are passed on to workers and stop nothing,\nas SIGUSR1 where it is SLURM's "
      "warning (default none)");
  table.text("--monitor-interval", flags.monitor_interval, "SECONDS",
             "accepted; Lockstep learns of a worker's end at once");

  table.group("Output");
  table.text("--log-dir", flags.log_dir, "DIR",
             "where log files go: DIR/<id>_<random>/attempt_<n>/\n<local rank>/stdout.log, "
             "stderr.log, error.json");
  table.text(
      "-r,--redirects", flags.redirects, "0|1|2|3|MAP",
      "to log files instead of the console: 1 stdout,\n2 stderr, 3 both; by local rank: 0:1,1:3");
  table.text("-t,--tee", flags.tee, "0|1|2|3|MAP",
             "to log files and the console, each line marked with\nits rank");
  table.text("--local-ranks-filter", flags.local_ranks_filter, "RANK,...",
             "local ranks whose output reaches the console (default all)");
  table.text("--duplicate-stdout-filters", flags.duplicate_stdout_filters, "TEXT,...",
             "lines that --tee shows and that hold one of the texts\ngo to "
             "attempt_<n>/filtered_stdout.log too; \",,\" is a comma");
  table.text("--duplicate-stderr-filters", flags.duplicate_stderr_filters, "TEXT,...",
             "the same of stderr, to filtered_stderr.log");
  table.text("--event-log-handler", flags.event_log_handler, "null|console",
             "console: torchrun's events on stderr, a line of JSON each");

  table.group("");  // Hidden: torchrun's that are of no use here.
  table.text("--start-method", flags.start_method, "NAME", "");
  table.text("--logs-specs", flags.logs_specs, "NAME", "");
}

// The beginnings of torchrun's flags stay theirs, as "--stan".
std::vector<FlagName> names_of(const CLI::App& app) {
  std::vector<FlagName> names;
  for (const CLI::Option* option : app.get_options()) {
    const auto& letters = option->get_snames();
    names.push_back({.name = option->get_lnames().front(),
                     .letter = letters.empty() ? '\0' : letters.front().front(),
                     .takes_value = option->get_items_expected_max() != 0,
                     .in_full = option->get_group() == kBySsh || option->check_lname("standby")});
  }
  return names;
}

}  // namespace

RunFlags parse_run_flags(const std::vector<std::string>& arguments) {
  RunFlags flags;
  CLI::App app(kDescription);
  app.formatter(std::make_shared<HelpFormat>());
  app.get_formatter()->column_width(36);
  app.footer(kFooter);
  app.set_help_flag("-h,--help", "show this text")->group("What runs");
  add_flags(app, flags);

  SplitArguments split = split_arguments(arguments, names_of(app));
  flags.program = std::move(split.program);
  flags.given = split.flags;
  std::reverse(split.flags.begin(), split.flags.end());  // The order that parse() takes.
  try {
    app.parse(split.flags);
  } catch (const CLI::CallForHelp&) {
    flags.help = app.help();
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  return flags;
}

}  // namespace lockstep::inline internal
