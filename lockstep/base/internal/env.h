#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// The environment: a table of every variable that Lockstep reads. Only env.cpp calls getenv.
/// Settings are looked up in this order: argument, environment, default.
/// Threads: reading is safe while no thread calls setenv.
namespace lockstep::inline internal::env {

struct Variable {
  const char* name;
  const char* type;
  const char* help;
  bool is_secret = false;  ///< not to be printed
};

// Given to each worker by the launcher (torchrun's names).
inline constexpr Variable kRank{"RANK", "int", "rank of this process in the job"},
    kWorldSize{"WORLD_SIZE", "int", "number of processes in the job"},
    kLocalRank{"LOCAL_RANK", "int", "rank of this process on its machine"},
    kLocalWorldSize{"LOCAL_WORLD_SIZE", "int", "number of processes on this machine"},
    kMasterAddr{"MASTER_ADDR", "host", "where rank 0 serves the job's store"},
    kMasterPort{"MASTER_PORT", "port", "the store's port"},
    kRestartCount{"TORCHELASTIC_RESTART_COUNT", "int",
                  "number of earlier generations of the job, 0 in the first"},
    kMaxRestarts{"TORCHELASTIC_MAX_RESTARTS", "int",
                 "maximum number of restarts after failures (--max-restarts)"},
    kRunId{"TORCHELASTIC_RUN_ID", "text", "id of the job"},
    kUseAgentStore{"TORCHELASTIC_USE_AGENT_STORE", "True|False",
                   "True if the launcher itself serves the store"},
    kErrorFile{"TORCHELASTIC_ERROR_FILE", "path",
               "file to which a failing worker writes its error as JSON"},
    kStoreListenFd{
        "LOCKSTEP_STORE_LISTEN_FD", "int",
        "socket bound by the launcher, on which rank 0 serves the store; set by lockstep run"},
    kLauncherFd{"LOCKSTEP_LAUNCHER_FD", "int",
                "socket over which a worker that keeps its state receives "
                "its next rank; set by lockstep run"},
    kStandby{"LOCKSTEP_STANDBY", "1|0",
             "1 in a worker that has no rank in the job yet (--standby); set by lockstep run"},
    kStateMemoryFd{"LOCKSTEP_STATE_MEMORY_FD", "int",
                   "memory file with a copy of the training state, which "
                   "the launcher keeps; set by lockstep run"},
    kJobMark{"LOCKSTEP_JOB", "text",
             "marks all processes of a job, those that its workers start too; set by lockstep run"},
    kJobSecret{"LOCKSTEP_JOB_SECRET", "text",
               "secret with which the machines of a job authenticate each other; not passed to "
               "workers (lockstep run --help)",
               true},
    kSpawn{"LOCKSTEP_SPAWN", "text",
           "process and call of lockstep::spawn() that started this process; set by spawn()"},
    kReplay{"LOCKSTEP_REPLAY", "text", "step to replay, and its folders; set by lockstep replay"};

// Given to each process by mpirun and srun, in place of the above. First of each: Open MPI; then
// MPICH and its kin (hydra); then Slurm.
inline constexpr Variable kOpenMpiRank{"OMPI_COMM_WORLD_RANK", "int",
                                       "RANK under Open MPI's mpirun"},
    kOpenMpiWorldSize{"OMPI_COMM_WORLD_SIZE", "int", "WORLD_SIZE under Open MPI's mpirun"},
    kOpenMpiLocalRank{"OMPI_COMM_WORLD_LOCAL_RANK", "int", "LOCAL_RANK under Open MPI's mpirun"},
    kOpenMpiLocalWorldSize{"OMPI_COMM_WORLD_LOCAL_SIZE", "int",
                           "LOCAL_WORLD_SIZE under Open MPI's mpirun"},
    kPmiRank{"PMI_RANK", "int", "RANK under MPICH's mpirun"},
    kPmiWorldSize{"PMI_SIZE", "int", "WORLD_SIZE under MPICH's mpirun"},
    kPmiLocalRank{"MPI_LOCALRANKID", "int", "LOCAL_RANK under MPICH's mpirun"},
    kPmiLocalWorldSize{"MPI_LOCALNRANKS", "int", "LOCAL_WORLD_SIZE under MPICH's mpirun"},
    kSlurmRank{"SLURM_PROCID", "int", "RANK under srun"},
    kSlurmWorldSize{"SLURM_STEP_NUM_TASKS", "int", "WORLD_SIZE under srun"},
    kSlurmLocalRank{"SLURM_LOCALID", "int", "LOCAL_RANK under srun"},
    kSlurmNode{"SLURM_NODEID", "int", "number of this machine among those of srun"},
    kSlurmTasksPerNode{"SLURM_STEP_TASKS_PER_NODE", "list",
                       "LOCAL_WORLD_SIZE under srun, of each machine"};

// From these the ranks know where to meet when MASTER_ADDR and MASTER_PORT are not set.
inline constexpr Variable kOpenMpiJob{"PMIX_NAMESPACE", "text",
                                      "id of the job under Open MPI's mpirun; gives the port"},
    kPmiConnection{"PMI_FD", "int",
                   "connection to MPICH's mpirun, through which rank 0 publishes its address"},
    kSlurmNodes{"SLURM_STEP_NODELIST", "list", "the machines of srun: rank 0 is on the first"},
    kSlurmJob{"SLURM_JOB_ID", "int", "id of the job under srun; gives the port, with the step"},
    kSlurmStep{"SLURM_STEP_ID", "int", "id of the job's step under srun"};

// Set by users.
inline constexpr Variable kTimeout{"LOCKSTEP_TIMEOUT_S", "seconds",
                                   "deadline of a collective (default 600)"},
    kInitTimeout{"LOCKSTEP_INIT_TIMEOUT_S", "seconds",
                 "deadline for all ranks to join (default 300)"},
    kBackend{"LOCKSTEP_BACKEND", "shm|hierarchical|gloo|nccl|mpi",
             "backend of init_process_group (default: nccl for a CUDA build "
             "with a device for each local rank, else shm where all ranks "
             "share memory, hierarchical where some do, else gloo)"},
    kMemoryDomain{
        "LOCKSTEP_MEMORY_DOMAIN", "text",
        "ranks share memory only with those of the same text: for containers that share a network "
        "namespace but no memory (default: all of one machine and network namespace)"},
    kCheckCalls{"LOCKSTEP_CHECK_CALLS", "1|0",
                "compare each collective with the other ranks' before it runs (default: 1 for CPU "
                "backends)"},
    kGlooSocketIfname{"GLOO_SOCKET_IFNAME", "name",
                      "network interface on which gloo accepts connections"},
    kNcclBlockingWait{
        "TORCH_NCCL_BLOCKING_WAIT", "1|0",
        "backend nccl: a wait blocks the host until the collective is complete or its "
        "deadline expires (default: 1 where failed ranks are replaced)"},
    kLogLevel{"LOCKSTEP_LOG", "debug|info|warning|error",
              "least severe message to print (default warning)"},
    kNoColor{"NO_COLOR", "any text", "no colours when set and not empty"};
#if defined(LOCKSTEP_FAILPOINTS)
inline constexpr Variable kFailpoint{
    "LOCKSTEP_FAILPOINT", "name:n:action[:rank[:generation]],...",
    "fault to inject in tests, when a process passes the failpoint for the n-th time: kill or stop "
    "the process, fail the call with EIO (eio) or write less (short); only in this rank and in "
    "processes with this TORCHELASTIC_RESTART_COUNT (default: any rank, count 0; * is any)"};
#endif
inline constexpr Variable kTemporaryFolder{"TMPDIR", "directory",
                                           "where temporary files go (default /tmp)"},
    kTerm{"TERM", "name", "dumb: no progress bar"};

// malloc's own: where one is set, init_process_group and DataParallel leave malloc alone.
inline constexpr Variable kMallocTrimThreshold{"MALLOC_TRIM_THRESHOLD_", "bytes",
                                               "free memory that malloc keeps (default: all)"},
    kMallocMmapThreshold{"MALLOC_MMAP_THRESHOLD_", "bytes",
                         "size from which malloc maps each block by itself (default 32 MB)"},
    kMallocMmapMax{"MALLOC_MMAP_MAX_", "int", "most blocks that malloc maps by themselves"},
    kMallocTopPad{"MALLOC_TOP_PAD_", "bytes", "what malloc asks of the system beyond its need"},
    kGlibcTunables{"GLIBC_TUNABLES", "list",
                   "settings of the C library, malloc's (glibc.malloc.) too"};

// Read by the launcher.
inline constexpr Variable kPythonExec{"PYTHON_EXEC", "path",
                                      "interpreter of Python programs (default python3)"},
    kShutdownTimeout{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "seconds",
                     "grace period from SIGTERM to SIGKILL, without --shutdown-timeout "
                     "(default 30)"},
    kAgentLogLevel{"LOGLEVEL", "DEBUG|INFO|WARNING|ERROR",
                   "above INFO, --event-log-handler=console prints nothing (default INFO)"},
    kEnableFileTimer{"TORCHELASTIC_ENABLE_FILE_TIMER", "1|0",
                     "torchrun's timer of workers; not supported: 1 gives a warning"},
    kHealthCheckPort{
        "TORCHELASTIC_HEALTH_CHECK_PORT", "port",
        "port at which the launcher serves the job's health and metrics (/healthz, /metrics, "
        "/status), at --local-addr, else on loopback (default: none)"},
    kLogLinePrefix{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "text",
                   "prefix of each line shown by --tee (default [${role_name}${local_rank}]:)"},
    kOmpNumThreads{
        "OMP_NUM_THREADS", "int",
        "threads of each worker's tensor kernels (default: processors divided by local workers)"},
    kHostsSilence{"LOCKSTEP_HOSTS_SILENCE_S", "seconds",
                  "machines of --hosts end a job when the command that "
                  "started it has sent no heartbeat for so long: it "
                  "may be stopped or disconnected (default 60)"},
    kCudaVisibleDevices{"CUDA_VISIBLE_DEVICES", "list",
                        "devices that --nproc-per-node=gpu counts (default all)"},
    kPath{"PATH", "list", "where programs given without a / are looked up"};

/// These NAME=value lines override the environment from now on, and replace those of an earlier
/// call. For a worker that gets another rank.
/// Threads: no other thread may read.
void replace(const std::vector<std::string>& lines);

/// All of the above, for `--help`.
std::span<const Variable* const> all();

/// The value; empty if the variable is unset or empty.
std::optional<std::string> text(const Variable& variable);

/// The value; empty if unset. An empty CUDA_VISIBLE_DEVICES hides every device.
std::optional<std::string> text_or_empty(const Variable& variable);

/// The whole environment, NAME=value each, for programs that this one starts.
std::vector<std::string> everything();

/// Errors: UsageError with variable and value if it is no integer.
std::optional<int> integer(const Variable& variable);

/// Errors: UsageError unless 1, true, on, yes, 0, false, off or no.
std::optional<bool> boolean(const Variable& variable);

/// Seconds, possibly with a fraction.
/// Errors: UsageError unless a positive number.
std::optional<std::chrono::milliseconds> seconds(const Variable& variable);

}  // namespace lockstep::inline internal::env
