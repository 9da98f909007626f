#include "lockstep/rpc/internal/agent.h"

#include <torch/csrc/distributed/rpc/request_callback_no_python.h>

#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/os/socket/tcp_socket.h"
#include "lockstep/rpc/internal/transport_error.h"
#include "lockstep/rpc/internal/worker.h"

namespace lockstep::rpc::inline internal {
namespace {

namespace torch_rpc = torch::distributed::rpc;
using JitFuture = c10::ivalue::Future;

// Of the agent: they read messages and complete answers. Functions have threads of their own.
constexpr int kDeliveringThreads = 4;

// TensorPipe's own TCP transport listens on the address of this machine's name, or what it takes
// for it. Ours listens where the group's ranks have found each other.
constexpr const char* kGroupTcp = "lockstep_tcp";

// TensorPipe's channel that spreads a tensor over sixteen connections. It listens at sixteen ports
// more, on the address of this machine's name, as long as the agent lives; a connection to one of
// them that is no worker's ends the channel, and with it calls with tensors.
constexpr const char* kChannelThatListens = "mpt_uv";

std::vector<std::string> channels() {
  std::vector<std::string> names = torch_rpc::TensorPipeChannelRegistry()->Keys();
  std::erase(names, kChannelThatListens);
  return names;
}

// What makes a transport takes no argument. Set before an agent starts, of which there is one.
std::string& listening_address() {
  static std::string address;
  return address;
}

std::unique_ptr<torch_rpc::TransportRegistration> make_group_tcp() {
  auto transport = torch_rpc::TensorPipeTransportRegistry()->Create("uv");
  transport->address = listening_address();
  return transport;
}

torch_rpc::TensorPipeRpcBackendOptions agent_options(const ProcessGroup& group,
                                                     const Options& options) {
  static std::once_flag registered;
  std::call_once(registered, [] {
    torch_rpc::TensorPipeTransportRegistry()->Register(kGroupTcp, make_group_tcp);
  });
  listening_address() = group.local_address().empty() ? "127.0.0.1" : group.local_address();
  const float timeout_s = std::chrono::duration<float>(options.timeout).count();
  return {kDeliveringThreads, std::vector<std::string>{kGroupTcp},
          channels(),         timeout_s,
          "env://",           {options.device_maps.begin(), options.device_maps.end()}};
}

// What LibTorch's agent calls for each message that comes.
class ServeRequests final : public torch_rpc::RequestCallbackNoPython {
 public:
  explicit ServeRequests(Worker& worker) : worker_(worker) {}

  c10::intrusive_ptr<JitFuture> processMessage(torch_rpc::Message& request,
                                               std::vector<c10::Stream> streams) const override {
    if (request.type() == torch_rpc::MessageType::PYTHON_CALL) {
      return worker_.serve(request, std::move(streams));
    }
    return worker_.serve_autograd(request, [&](torch_rpc::RpcCommandBase& command) {
      return processRpcWithErrors(command, request.type(), streams);
    });
  }

 private:
  Worker& worker_;
};

}  // namespace

Agent::Agent(const c10::intrusive_ptr<c10d::Store>& store, const ProcessGroup& group,
             const std::string& name, const Options& options, const DeviceMaps& reverse_device_maps,
             std::vector<c10::Device> devices, Worker& worker)
    : TensorPipeAgent(store, name, static_cast<torch_rpc::worker_id_t>(group.rank()),
                      group.world_size(), agent_options(group, options),
                      {reverse_device_maps.begin(), reverse_device_maps.end()}, std::move(devices),
                      std::make_unique<ServeRequests>(worker)),
      worker_(worker) {}

// TensorPipe has no call for this. A connection that ends without a word ends its listening, too.
void Agent::stop_listening() {
  constexpr std::chrono::seconds kReachesItself{1};
  const auto address = getNetworkSourceInfo().srcMachineAddr;
  const std::string url(address.begin(), address.end());  // "lockstep_tcp://127.0.0.1:4711"
  const auto port = parse_number<std::uint16_t>(url.substr(url.rfind(':') + 1));
  LOCKSTEP_ASSERT(port);
  accepts_connections(listening_address(), *port, Deadline::after(kReachesItself));
}

void Agent::connect_locally(std::unordered_map<int, UniqueFd> sockets) {
  if (sockets.empty()) return;
  local_ = std::make_unique<LocalTransport>(
      std::move(sockets), static_cast<std::size_t>(worker_.options().max_message_bytes), worker_);
  local_->start();
  has_local_ = true;
}

void Agent::stop_locally() noexcept {
  if (has_local_) local_->stop();
}

void Agent::notify_loss(int rank) {
  if (has_local_) local_->notify_loss(rank);
}

c10::intrusive_ptr<JitFuture> Agent::send(const torch_rpc::WorkerInfo& to,
                                          c10::intrusive_ptr<torch_rpc::Message> message,
                                          float timeout_s, const torch_rpc::DeviceMap& device_map) {
  {
    const MutexLock lock(mutex_);
    ++under_way_;
  }
  const int target = to.id_;
  try {
    const bool is_local = has_local_ && message->type() == torch_rpc::MessageType::PYTHON_CALL &&
                          local_->reaches(target) && !problem_of(message->tensors());
    const auto timeout =
        std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<float>(timeout_s));
    auto answer = is_local ? local_->send(target, *message, timeout)
                           : TensorPipeAgent::send(to, std::move(message), timeout_s, device_map);
    ++sent_;
    answer->addCallback([this, target](JitFuture& future) {
      if (future.hasError() && is_connection_error(future.tryRetrieveErrorMessage())) {
        worker_.note_lost(target);
      }
      end_one();
    });
    return answer;
  } catch (const std::exception& error) {
    end_one();
    if (is_connection_error(error.what())) worker_.note_lost(target);
    throw;
  }
}

void Agent::end_one() {
  const MutexLock lock(mutex_);
  if (--under_way_ == 0) all_answered_.notify_all();
}

bool Agent::wait_until_answered(const Deadline& deadline) {
  MutexLock lock(mutex_);
  return all_answered_.wait_until(lock.native(), deadline.instant(),
                                  [this]() LOCKSTEP_REQUIRES(mutex_) { return under_way_ == 0; });
}

}  // namespace lockstep::rpc::inline internal
