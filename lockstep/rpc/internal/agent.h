#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <string>
#include <unordered_map>

#include <torch/csrc/distributed/rpc/tensorpipe_agent.h>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/rpc/internal/local_transport.h"
#include "lockstep/rpc/rpc.h"

namespace lockstep::rpc::inline internal {

class Worker;

/// LibTorch's agent, which transports messages between workers by TCP (TensorPipe). Messages to
/// workers that `LocalTransport` reaches go that way instead. Also knows whose connection has
/// ended, and how many of its requests are in flight.
/// Threads: any.
/// Lifetime: `worker` must outlive it.
class Agent final : public torch::distributed::rpc::TensorPipeAgent {
 public:
  Agent(const c10::intrusive_ptr<c10d::Store>& store, const ProcessGroup& group,
        const std::string& name, const Options& options, const DeviceMaps& reverse_device_maps,
        std::vector<c10::Device> devices, Worker& worker);

  /// Stops listening; call it when all workers are connected.
  void stop_listening();
  /// Uses these sockets for calls, by rank of the other worker. Call it once.
  void connect_locally(std::unordered_map<int, UniqueFd> sockets);
  /// Call it before a thread sleeps until a worker replies.
  void poll_for(const c10::ivalue::Future& answer, int target) {
    if (has_local_) local_->poll_for(answer, target);
  }
  /// Notifies the other workers of this machine that a worker is lost.
  void notify_loss(int rank);
  /// Ends the thread that serves workers of this machine; their calls get no reply any more.
  void stop_locally() noexcept;

  c10::intrusive_ptr<c10::ivalue::Future> send(
      const torch::distributed::rpc::WorkerInfo& to,
      c10::intrusive_ptr<torch::distributed::rpc::Message> message, float timeout_s,
      const torch::distributed::rpc::DeviceMap& device_map) override;

  /// Requests sent so far, except those that timed out before they were sent.
  std::int64_t sent() const { return sent_.load(); }
  /// Requests of other workers, answered so far.
  std::int64_t served() const { return served_.load(); }
  void count_served() { ++served_; }
  void count_never_sent() { --sent_; }
  /// Waits until none of its requests is in flight. False at the deadline.
  bool wait_until_answered(const Deadline& deadline);

 private:
  void end_one();

  Worker& worker_;
  std::unique_ptr<LocalTransport> local_;
  std::atomic<bool> has_local_{false};  ///< other workers may call as soon as the agent has started
  std::atomic<std::int64_t> sent_{0};
  std::atomic<std::int64_t> served_{0};
  Mutex mutex_;
  std::condition_variable all_answered_;
  std::int64_t under_way_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::rpc::inline internal
