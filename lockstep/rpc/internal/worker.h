#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <c10/core/thread_pool.h>
#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/rpc_command_base.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/internal/store_wait.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/rpc/internal/call_message.h"
#include "lockstep/rpc/internal/local_transport.h"
#include "lockstep/rpc/internal/pending_call.h"
#include "lockstep/rpc/internal/rref_table.h"
#include "lockstep/rpc/rpc.h"

namespace lockstep::rpc::inline internal {

class Agent;

/// This process as a worker: makes calls, serves calls of others, keeps values for them.
/// Threads: any, except for start() and stop().
/// Lifetime: held by the session, and by calls in flight.
class Worker final : public std::enable_shared_from_this<Worker>, public LocalTransport::Receiver {
 public:
  Worker(std::string name, ProcessGroup group, Options options);
  ~Worker() override;

  /// Connects to the other workers. Collective.
  /// Errors: as rpc::init.
  void start();
  /// Waits until no call is in flight on any worker. Collective.
  /// Errors: as rpc::shutdown.
  void finish(const Deadline& deadline);
  /// Closes this worker's connections, and waits for the functions that it is serving. Do not call
  /// it in such a function. Call it once.
  void stop() noexcept;
  /// Whether this thread runs a function for another worker.
  static bool is_serving();
  bool stopped() const { return stopped_.load(); }

  int rank() const { return rank_; }
  const Options& options() const { return options_; }
  const std::vector<WorkerInfo>& workers() const { return workers_; }
  /// The worker of this name or rank.
  /// Errors: UsageError for an unknown one.
  const WorkerInfo& find(const std::string& name) const;
  const WorkerInfo& find(int rank) const;

  /// Sends a request. `kept`: values that must live until the reply.
  std::shared_ptr<PendingCall> send(int target, CallRequest request,
                                    std::optional<std::chrono::milliseconds> timeout,
                                    std::vector<c10::IValue> kept = {});
  /// Call it before a thread sleeps until a worker replies.
  void poll_for(const c10::ivalue::Future& answer, int target);
  RRefKey next_key(int owner);

  RRefTable& rrefs() { return rrefs_; }
  /// Releases one hold of this worker; never waits, never throws.
  void release(const RRefKey& key) noexcept { release(key, rank_); }

  /// Serves a call of another worker.
  /// Threads: those that read messages.
  c10::intrusive_ptr<c10::ivalue::Future> serve(torch::distributed::rpc::Message& message,
                                                std::vector<c10::Stream> streams) override;
  c10::intrusive_ptr<c10::ivalue::Future> refuse_large(std::size_t size_bytes,
                                                       std::int64_t id) override;
  /// Serves messages of distributed autograd with LibTorch's own `process`; refuses all others.
  using Process = std::function<c10::intrusive_ptr<c10::ivalue::Future>(
      torch::distributed::rpc::RpcCommandBase&)>;
  c10::intrusive_ptr<c10::ivalue::Future> serve_autograd(torch::distributed::rpc::Message& message,
                                                         const Process& process);

  void note_lost(int rank) override;
  void note_told_of_loss(std::int64_t rank) noexcept override;
  void note_never_sent() noexcept override;
  bool is_lost(int rank) const { return lost_[static_cast<std::size_t>(rank)].load(); }
  /// The first lost worker, of several that were lost shortly after each other.
  std::optional<int> lost_worker() const;
  /// The error for a lost worker, in an operation with these fields; also names a worker that was
  /// lost before it.
  PeerLost loss_of(int rank, ErrorFields fields) const;
  /// Text for error messages: "worker 'w1' (rank 1)".
  std::string describe(int rank) const;

  /// Devices to which gradients of what another worker sent return.
  std::unordered_map<c10::Device, c10::Device> gradients_back_to(int rank) const;

  /// Errors: UsageError for a message larger than max_message_bytes.
  void check_size(const MessageData& parcel) const;

  /// Whether values are in a call or in its reply; decides who holds an RRef among them.
  enum class Way { kCall, kAnswer };
  /// What accompanies a message.
  struct Baggage {
    std::vector<c10::IValue> kept;  ///< must live until the message has been read
    std::vector<RRefKey> held;      ///< holds that its reader gets, and must release
  };
  /// Contexts to read and to write values of another worker.
  ValueContext incoming(Way way);
  ValueContext outgoing(int target, Way way, Baggage& baggage);

 private:
  using Answer = c10::intrusive_ptr<torch::distributed::rpc::Message>;

  void release(const RRefKey& key, int holder) noexcept;
  /// For the reader of a message that was not delivered.
  void release_all(const std::vector<RRefKey>& keys, int holder) noexcept;
  void note_first_lost(int rank) noexcept;
  void run_later(std::function<void()> action);
  c10::IValue execute(CallRequest& request);
  c10::intrusive_ptr<c10::ivalue::Future> run_call(CallRequest request, const MessageData& parcel,
                                                   const std::vector<c10::Stream>& streams,
                                                   std::int64_t id);
  void expect_value(const CallRequest& request);
  c10::IValue keep(const CallRequest& request, c10::IValue value);
  Answer answer_with(const CallRequest& request, const c10::IValue& value, std::int64_t id);
  Answer answer_with(const CallRequest& request, std::exception_ptr error, std::int64_t id);
  Answer refuse(const std::string& why, std::size_t size_bytes, std::int64_t id);
  Answer make_answer(const CallReply& answer, int caller, std::int64_t id);
  void start_agent(const c10::intrusive_ptr<c10d::Store>& store,
                   const std::vector<c10::Device>& devices);
  void stop_agent() noexcept;
  std::optional<int> greet_all(const Deadline& deadline);
  bool connect_to_all(bool is_last_try, const Deadline& deadline);

  const std::string name_;
  const ProcessGroup group_;
  const Options options_;
  const int rank_;
  std::vector<WorkerInfo> workers_;
  DeviceMaps reverse_device_maps_;         ///< by name of the sender
  std::atomic<bool> notes_losses_{false};  ///< false while workers connect: they may connect again
  std::vector<std::atomic<bool>> lost_;
  static constexpr int kNobody = -1;
  std::atomic<int> first_lost_{kNobody};       ///< of several lost shortly after each other
  std::vector<std::atomic<int>> loss_causes_;  ///< by lost worker: which was lost first then
  std::atomic<Deadline::Clock::time_point> last_loss_{};
  std::optional<QuietC10d> quiet_;
  RRefTable rrefs_;
  /// From start() on, also after stop(): late replies pass through it.
  std::shared_ptr<Agent> agent_;
  /// Runs functions for other workers. The agent's own threads deliver replies, and must not wait
  /// for any.
  std::unique_ptr<c10::ThreadPool> functions_pool_;
  Mutex later_mutex_;
  std::unique_ptr<c10::ThreadPool> later_pool_ LOCKSTEP_GUARDED_BY(later_mutex_);
  std::atomic<bool> stopped_{false};
  std::atomic<std::int64_t> next_number_{0};
  std::atomic<int> refused_{0};
};

/// The function registered by this name.
/// Errors: UsageError for an unknown name, with the nearest one.
std::shared_ptr<const Function> find_function(const std::string& name);

/// The worker of this process.
/// Errors: UsageError before rpc::init.
std::shared_ptr<Worker> current_worker();
/// The same; null before rpc::init.
std::shared_ptr<Worker> current_worker_or_null();
void set_current_worker(std::shared_ptr<Worker> worker);

}  // namespace lockstep::rpc::inline internal
