#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// The environment. Every variable that Lockstep reads is in the table below: this is the only room
/// with a getenv. Settings are looked up in this order: argument, environment, default.
/// Threads: reading is safe as long as nobody calls setenv.
namespace lockstep::env {

struct Variable {
  const char* name;
  const char* type;
  const char* help;
};

// Given to each worker by the launcher (torchrun's names).
inline constexpr Variable kRank{"RANK", "int", "rank of this process in the job"};
inline constexpr Variable kWorldSize{"WORLD_SIZE", "int", "number of processes in the job"};
inline constexpr Variable kLocalRank{"LOCAL_RANK", "int", "rank of this process on its machine"};
inline constexpr Variable kLocalWorldSize{"LOCAL_WORLD_SIZE", "int",
                                          "number of processes on this machine"};
inline constexpr Variable kMasterAddr{"MASTER_ADDR", "host", "where rank 0 serves the job's store"};
inline constexpr Variable kMasterPort{"MASTER_PORT", "port", "the store's port"};
inline constexpr Variable kRestartCount{"TORCHELASTIC_RESTART_COUNT", "int",
                                        "how often the job was restarted: its generation"};
inline constexpr Variable kRunId{"TORCHELASTIC_RUN_ID", "text", "id of the job"};
inline constexpr Variable kUseAgentStore{"TORCHELASTIC_USE_AGENT_STORE", "True|False",
                                         "True where the launcher itself serves the store"};
inline constexpr Variable kErrorFile{"TORCHELASTIC_ERROR_FILE", "path",
                                     "where a failing worker leaves its error as JSON"};
inline constexpr Variable kStoreListenFd{
    "LOCKSTEP_STORE_LISTEN_FD", "int",
    "socket bound by the launcher, on which rank 0 serves the store; set by lockstep run"};

// Set by users.
inline constexpr Variable kTimeout{"LOCKSTEP_TIMEOUT_S", "seconds",
                                   "deadline of a collective (default 600)"};
inline constexpr Variable kInitTimeout{"LOCKSTEP_INIT_TIMEOUT_S", "seconds",
                                       "deadline for all ranks to join (default 300)"};
inline constexpr Variable kBackend{"LOCKSTEP_BACKEND", "gloo|nccl",
                                   "backend of init_process_group (default: nccl for a CUDA build "
                                   "with a device for each local rank, else gloo)"};
inline constexpr Variable kGlooSocketIfname{"GLOO_SOCKET_IFNAME", "name",
                                            "network interface on which gloo accepts connections"};
inline constexpr Variable kLogLevel{"LOCKSTEP_LOG", "debug|info|warning|error",
                                    "least severe message to print (default warning)"};
inline constexpr Variable kNoColor{"NO_COLOR", "any text", "no colours when set and not empty"};
inline constexpr Variable kTerm{"TERM", "name", "dumb: no progress bar"};

// Read by the launcher.
inline constexpr Variable kPythonExec{"PYTHON_EXEC", "path",
                                      "what runs programs in Python (default python3)"};
inline constexpr Variable kShutdownTimeout{
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "seconds",
    "from telling workers to end to killing them (default 30)"};
inline constexpr Variable kLogLinePrefix{
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "text",
    "before each line shown by --tee (default [${role_name}${local_rank}]:)"};
inline constexpr Variable kOmpNumThreads{
    "OMP_NUM_THREADS", "int",
    "threads of each worker's tensor kernels (default: processors divided by local workers)"};
inline constexpr Variable kCudaVisibleDevices{
    "CUDA_VISIBLE_DEVICES", "list", "devices that --nproc-per-node=gpu counts (default all)"};
inline constexpr Variable kPath{"PATH", "list", "where programs given without a / are looked up"};

/// All of the above, for --help.
std::span<const Variable* const> all();

/// The value, or nothing when unset or empty.
std::optional<std::string> text(const Variable& variable);

/// The whole environment as it is, NAME=value each: for programs started by this one.
std::vector<std::string> everything();

/// Errors: UsageError naming the variable and its value when it is no integer.
std::optional<int> integer(const Variable& variable);

/// Seconds, fractions allowed. Errors: UsageError unless a positive number.
std::optional<std::chrono::milliseconds> seconds(const Variable& variable);

}  // namespace lockstep::env
