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

/// This process as a worker: makes calls, serves those of others, keeps values for them.
/// Threads: any, but for start and stop. Lifetime: held by the session, and by what is under way.
class Worker final : public std::enable_shared_from_this<Worker>, public LocalTransport::Receiver {
 public:
  Worker(std::string name, ProcessGroup group, Options options);
  ~Worker() override;

  /// Collective: meets the others. Errors: as rpc::init.
  void start();
  /// Collective: waits until no call is under way anywhere. Errors: as rpc::shutdown.
  void finish(const Deadline& deadline);
  /// Closes its connections, here alone, and waits for the functions that are being served. Not in
  /// one of these. Once.
  void stop() noexcept;
  /// Whether this thread runs a function for another worker.
  static bool is_serving();
  bool stopped() const { return stopped_.load(); }

  int rank() const { return rank_; }
  const Options& options() const { return options_; }
  const std::vector<WorkerInfo>& workers() const { return workers_; }
  /// Errors: UsageError for a name or rank that is none.
  const WorkerInfo& find(const std::string& name) const;
  const WorkerInfo& find(int rank) const;

  /// `kept`: what must live until there is an answer.
  std::shared_ptr<PendingCall> send(int target, CallRequest request,
                                    std::optional<std::chrono::milliseconds> timeout,
                                    std::vector<c10::IValue> kept = {});
  /// Before a thread goes to sleep until there is this answer of a worker.
  void look_for(const c10::ivalue::Future& answer, int target);
  RRefKey next_key(int owner);

  RRefTable& rrefs() { return rrefs_; }
  /// Gives back one hold of this worker; never waits, never throws.
  void release(const RRefKey& key) noexcept { release(key, rank_); }

  /// Serves one call of another worker. Threads: those that read messages.
  c10::intrusive_ptr<c10::ivalue::Future> serve(torch::distributed::rpc::Message& message,
                                                std::vector<c10::Stream> streams) override;
  c10::intrusive_ptr<c10::ivalue::Future> refuse_large(std::size_t size_bytes,
                                                       std::int64_t id) override;
  /// Serves what distributed autograd sends, by LibTorch's own `process`; refuses all else.
  using Process = std::function<c10::intrusive_ptr<c10::ivalue::Future>(
      torch::distributed::rpc::RpcCommandBase&)>;
  c10::intrusive_ptr<c10::ivalue::Future> serve_autograd(torch::distributed::rpc::Message& message,
                                                         const Process& process);

  void note_lost(int rank) override;
  void note_told_of_loss(std::int64_t rank) noexcept override;
  void note_never_sent() noexcept override;
  bool is_lost(int rank) const { return lost_[static_cast<std::size_t>(rank)].load(); }
  /// The first that was lost, of several that were lost shortly after each other.
  std::optional<int> lost_worker() const;
  /// That a worker is lost, in an operation with these fields; names who was lost before it, too.
  PeerLost loss_of(int rank, ErrorFields fields) const;
  /// "worker 'w1' (rank 1)".
  std::string describe(int rank) const;

  /// The devices to which gradients of what another worker sent go back.
  std::unordered_map<c10::Device, c10::Device> gradients_back_to(int rank) const;

  /// Errors: UsageError for a message that is larger than max_message_bytes.
  void check_size(const Parcel& parcel) const;

  /// Whether values travel with a call or with its answer: who still holds what an RRef names.
  enum class Way { kCall, kAnswer };
  /// What travels with a message.
  struct Baggage {
    std::vector<c10::IValue> kept;  ///< must live until the message has been read
    std::vector<RRefKey> held;      ///< what its reader holds then, and has to give back
  };
  /// To read and to write values of another worker.
  ValueContext incoming(Way way);
  ValueContext outgoing(int target, Way way, Baggage& baggage);

 private:
  using Answer = c10::intrusive_ptr<torch::distributed::rpc::Message>;

  void release(const RRefKey& key, int holder) noexcept;
  /// For a reader that a message does not reach.
  void release_all(const std::vector<RRefKey>& keys, int holder) noexcept;
  void note_first_lost(int rank) noexcept;
  void run_later(std::function<void()> action);
  c10::IValue execute(CallRequest& request);
  c10::intrusive_ptr<c10::ivalue::Future> run_call(CallRequest request, const Parcel& parcel,
                                                   const std::vector<c10::Stream>& streams,
                                                   std::int64_t id);
  void expect_value(const CallRequest& request);
  c10::IValue keep(const CallRequest& request, c10::IValue value);
  Answer answer_with(const CallRequest& request, const c10::IValue& value, std::int64_t id);
  Answer answer_with(const CallRequest& request, std::exception_ptr error, std::int64_t id);
  Answer refuse(const std::string& why, std::size_t size_bytes, std::int64_t id);
  Answer make_answer(const CallAnswer& answer, int caller, std::int64_t id);
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
  DeviceMaps reverse_device_maps_;         ///< by the name of who sends here
  std::atomic<bool> notes_losses_{false};  ///< not while workers connect: they may connect again
  std::vector<std::atomic<bool>> lost_;
  static constexpr int kNobody = -1;
  std::atomic<int> first_lost_{kNobody};       ///< of several lost shortly after each other
  std::vector<std::atomic<int>> loss_causes_;  ///< of each that is lost: who was the first then
  std::atomic<Deadline::Clock::time_point> last_loss_{};
  std::optional<QuietC10d> quiet_;
  RRefTable rrefs_;
  /// From start() on, also when it has stopped: answers that come later pass through it.
  std::shared_ptr<Agent> agent_;
  /// Run what others call. The agent's own threads deliver answers, and must not wait for any.
  std::unique_ptr<c10::ThreadPool> functions_pool_;
  Mutex later_mutex_;
  std::unique_ptr<c10::ThreadPool> later_pool_ LOCKSTEP_GUARDED_BY(later_mutex_);
  std::atomic<bool> stopped_{false};
  std::atomic<std::int64_t> next_number_{0};
  std::atomic<int> refused_{0};
};

/// What was registered by that name. Errors: UsageError for a name that is not there, with the
/// nearest one.
std::shared_ptr<const Function> find_function(const std::string& name);

/// Errors: UsageError when rpc::init has not been called.
std::shared_ptr<Worker> current_worker();
/// Null where there is none.
std::shared_ptr<Worker> current_worker_or_null();
void set_current_worker(std::shared_ptr<Worker> worker);

}  // namespace lockstep::rpc::inline internal
