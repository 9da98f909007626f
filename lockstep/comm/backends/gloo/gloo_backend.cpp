#include "lockstep/comm/backends/gloo/gloo_backend.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/comm/backends/flat_work.h"
#include "lockstep/comm/backends/gloo/connections.h"
#include "lockstep/comm/backends/gloo/message_work.h"
#include "lockstep/comm/backends/gloo/ordered_keys.h"
#include "lockstep/comm/internal/c10d_backend.h"
#include "lockstep/comm/internal/run_watched.h"
#include "lockstep/comm/internal/watched_store.h"
#include "lockstep/os/process/batch_scheduling.h"

namespace lockstep::inline internal {
namespace {

using c10d::ProcessGroupGloo;
using gloo_backend::ConnectedWork;
using gloo_backend::Connections;
using gloo_backend::keyed_work;
using gloo_backend::needs_keys;
using gloo_backend::ordered_keys;

// Gloo adds bool as bytes, which leaves values other than 0 and 1. On bytes of 0 and 1 the logical
// operations are minimum and maximum.
c10d::ReduceOp op_for_bool(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::BOR:
      return c10d::ReduceOp::MAX;
    case c10d::ReduceOp::PRODUCT:
    case c10d::ReduceOp::BAND:
      return c10d::ReduceOp::MIN;
    default:
      return op;
  }
}

std::vector<std::int64_t> counts_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::int64_t> counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(tensor.numel());
  return counts;
}

// The options of a reduction over the bytes of bools.
template <class Options>
Options for_bool(Options options) {
  options.reduceOp = op_for_bool(options.reduceOp);
  return options;
}

bool is_bool(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool;
}

// Lists that are empty or of several dtypes are left to Gloo, which refuses them.
bool are_bools(const std::vector<at::Tensor>& tensors) {
  return !tensors.empty() && std::ranges::all_of(tensors, is_bool);
}

std::vector<at::Tensor> all_of(std::vector<at::Tensor> outputs,
                               const std::vector<at::Tensor>& inputs) {
  outputs.insert(outputs.end(), inputs.begin(), inputs.end());
  return outputs;
}

at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.view(at::kByte);
}

std::vector<at::Tensor> as_bytes(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& tensor : tensors) bytes.push_back(as_bytes(tensor));
  return bytes;
}

class GlooBackend final : public ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  using Tensors = std::vector<at::Tensor>;

  // Work that has ended counts no more, even where its thread has not yet let go of it.
  bool is_busy() {
    if (message_threads_->load() > 0) return true;
    const std::lock_guard lock(workMutex_);
    const auto running = [](const auto& work) { return work.defined() && !work->isCompleted(); };
    return !workQueue_.empty() ||
           std::any_of(workInProgress_.begin(), workInProgress_.end(), running);
  }

  const std::shared_ptr<Connections>& connections() const { return connections_; }

  void abort() override { connections_->close(); }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    if (needs_keys(tensors, options.reduceOp)) {
      auto keys = ordered_keys(tensors, options.reduceOp);
      auto work = ProcessGroupGloo::allreduce(keys, options);
      return keyed_work(std::move(work), std::move(keys), tensors);
    }
    if (!are_bools(tensors)) return ProcessGroupGloo::allreduce(tensors, options);
    auto bytes = as_bytes(tensors);
    return ProcessGroupGloo::allreduce(bytes, for_bool(options));
  }

  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    if (needs_keys(tensors, options.reduceOp)) {
      auto keys = ordered_keys(tensors, options.reduceOp);
      auto work = ProcessGroupGloo::allreduce_coalesced(keys, options);
      return keyed_work(std::move(work), std::move(keys), tensors);
    }
    if (!are_bools(tensors)) return ProcessGroupGloo::allreduce_coalesced(tensors, options);
    auto bytes = as_bytes(tensors);
    return ProcessGroupGloo::allreduce_coalesced(bytes, for_bool(options));
  }

  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors,
                                        const c10d::ReduceOptions& options) override {
    if (needs_keys(tensors, options.reduceOp)) {
      auto keys = ordered_keys(tensors, options.reduceOp);
      auto work = ProcessGroupGloo::reduce(keys, options);
      return keyed_work(std::move(work), std::move(keys), tensors);
    }
    if (!are_bools(tensors)) return ProcessGroupGloo::reduce(tensors, options);
    auto bytes = as_bytes(tensors);
    return ProcessGroupGloo::reduce(bytes, for_bool(options));
  }

  c10::intrusive_ptr<c10d::Work> reduce_scatter(
      std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
      const c10d::ReduceScatterOptions& options) override {
    const auto all = inputs.size() == 1 ? all_of(outputs, inputs[0]) : std::vector<at::Tensor>();
    if (needs_keys(all, options.reduceOp)) {
      std::vector<std::vector<at::Tensor>> input_keys{ordered_keys(inputs[0], options.reduceOp)};
      auto keys = ordered_keys(outputs, options.reduceOp);
      auto work = ProcessGroupGloo::reduce_scatter(keys, input_keys, options);
      return keyed_work(std::move(work), std::move(keys), outputs);
    }
    if (!are_bools(all)) return ProcessGroupGloo::reduce_scatter(outputs, inputs, options);
    auto output_bytes = as_bytes(outputs);
    std::vector<std::vector<at::Tensor>> input_bytes{as_bytes(inputs[0])};
    return ProcessGroupGloo::reduce_scatter(output_bytes, input_bytes, for_bool(options));
  }

  // Gloo's own takes tensors of one size only.
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs,
                                          std::vector<at::Tensor>& inputs,
                                          const c10d::AllToAllOptions& options) override {
    at::Tensor flat_input = flat_copy(inputs);
    at::Tensor flat_output = at::empty_like(flat_copy(outputs));
    auto output_counts = counts_of(outputs);
    auto input_counts = counts_of(inputs);
    auto work = alltoall_base(flat_output, flat_input, output_counts, input_counts, options);
    return flat_work(std::move(work), flat_output, outputs);
  }

  // Gloo reads and writes outside of the tensors by splits below 0, and compares no dtypes.
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<std::int64_t>& output_splits,
                                               std::vector<std::int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override {
    if (output.scalar_type() != input.scalar_type()) {
      throw UsageError(concat("all_to_all: the output is ", c10::toString(output.scalar_type()),
                              ", the input ", c10::toString(input.scalar_type())));
    }
    for (const auto* const splits : {&output_splits, &input_splits}) {
      for (const std::int64_t rows : *splits) {
        if (rows < 0) throw UsageError(concat("all_to_all: a split of ", rows, " rows"));
      }
    }
    return ProcessGroupGloo::alltoall_base(output, input, output_splits, input_splits, options);
  }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int target,
                                      int tag) override {
    return send_within(tensors, target, tag, options_->timeout);
  }

  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source,
                                      int tag) override {
    return recv_within(tensors, source, tag, options_->timeout);
  }

  c10::intrusive_ptr<c10d::Work> send_within(std::vector<at::Tensor>& tensors, int target, int tag,
                                             std::chrono::milliseconds timeout) {
    check_peer("send", target);
    Tensors staged = on_cpu(tensors);
    return message_work(ProcessGroupGloo::send(staged, target, tag), target, timeout);
  }

  c10::intrusive_ptr<c10d::Work> recv_within(std::vector<at::Tensor>& tensors, int source, int tag,
                                             std::chrono::milliseconds timeout) {
    check_peer("recv", source);
    return receive(tensors, source, timeout,
                   [&](Tensors& into) { return ProcessGroupGloo::recv(into, source, tag); });
  }

  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override {
    return receive(tensors, Connections::kAll, options_->timeout,
                   [&](Tensors& into) { return ProcessGroupGloo::recvAnysource(into, tag); });
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    if (needs_keys({output, input}, options.reduceOp)) {
      at::Tensor input_keys = ordered_keys(input, options.reduceOp);
      at::Tensor keys = ordered_keys(output, options.reduceOp);
      auto work = ProcessGroupGloo::_reduce_scatter_base(keys, input_keys, options);
      return keyed_work(std::move(work), std::vector<at::Tensor>{keys},
                        std::vector<at::Tensor>{output});
    }
    if (!are_bools({output, input}))
      return ProcessGroupGloo::_reduce_scatter_base(output, input, options);
    auto output_bytes = as_bytes(output);
    auto input_bytes = as_bytes(input);
    return ProcessGroupGloo::_reduce_scatter_base(output_bytes, input_bytes, for_bool(options));
  }

 private:
  // Gloo stages the CUDA tensors of collectives, but would read those of messages on the host.
  static Tensors on_cpu(const Tensors& tensors) {
    Tensors copies;
    for (const at::Tensor& tensor : tensors) copies.push_back(tensor.cpu());
    return copies;
  }

  template <class Start>
  c10::intrusive_ptr<c10d::Work> receive(Tensors& tensors, int source,
                                         std::chrono::milliseconds timeout, Start&& start) {
    if (tensors.size() != 1 || !tensors[0].is_cuda()) {
      return message_work(start(tensors), source, timeout);
    }
    Tensors staged{at::empty({tensors[0].numel()}, tensors[0].scalar_type())};
    auto work = message_work(start(staged), source, timeout);
    return flat_work(std::move(work), staged[0], tensors);
  }

  // Gloo has no connection to itself, and looks for none.
  void check_peer(const char* operation, int peer) const {
    if (peer >= 0 && peer < getSize() && peer != getRank()) return;
    throw UsageError(
        concat(operation, ": ", peer, " is not another rank of this group of ", getSize()));
  }

  c10::intrusive_ptr<c10d::Work> message_work(c10::intrusive_ptr<c10d::Work> work, int peer,
                                              std::chrono::milliseconds timeout) {
    return c10::make_intrusive<gloo_backend::MessageWork>(
        c10::intrusive_ptr<c10d::Backend>::unsafe_reclaim_from_nonowning(this), std::move(work),
        message_threads_, connections_, peer, timeout);
  }

  // There is one device.
  const std::shared_ptr<Connections> connections_ =
      std::make_shared<Connections>(contexts_.front(), getRank(), getSize());
  const std::shared_ptr<std::atomic<int>> message_threads_ = std::make_shared<std::atomic<int>>(0);
};

// In a CUDA build of LibTorch, Gloo copies CUDA tensors through pinned memory.
#ifdef LOCKSTEP_WITH_CUDA
constexpr bool kStagesCuda = true;
#else
constexpr bool kStagesCuda = false;
#endif

class NativeGloo final : public C10dBackend {
 public:
  explicit NativeGloo(const c10::intrusive_ptr<GlooBackend>& gloo)
      : C10dBackend(gloo), gloo_(*gloo) {}

  bool takes_cuda() const override { return kStagesCuda; }
  bool is_busy() override { return gloo_.is_busy(); }
  bool is_cut_off(std::chrono::steady_clock::time_point begun) override {
    return gloo_.connections()->are_lost(Connections::kAll, begun);
  }

  WorkPtr send(const Tensor& tensor, int target, int tag, const CallTerms& terms) override {
    Tensors tensors{tensor};
    return gloo_.send_within(tensors, target, tag, terms.timeout);
  }
  WorkPtr recv(const Tensor& tensor, int source, int tag, const CallTerms& terms) override {
    Tensors tensors{tensor};
    return gloo_.recv_within(tensors, source, tag, terms.timeout);
  }
  WorkPtr recv_from_any(const Tensor& tensor, int tag, const CallTerms&) override {
    Tensors tensors{tensor};
    return gloo_.recvAnysource(tensors, tag);
  }

 private:
  WorkPtr wrap(WorkPtr work, const CallTerms&) override {
    return c10::make_intrusive<ConnectedWork>(std::move(work), gloo_.connections());
  }

  GlooBackend& gloo_;
};

std::shared_ptr<::gloo::transport::Device> make_device(const BackendConfig& config) {
  const std::string& address = config.local_address;
  // A job on loopback stays there, whatever interface the environment names for others.
  const bool on_loopback = address.starts_with("127.") || address == "::1";
  const auto interface = env::text(env::kGlooSocketIfname);
  if (interface && !on_loopback) return ProcessGroupGloo::createDeviceForInterface(*interface);
  if (!address.empty()) return ProcessGroupGloo::createDeviceForHostname(address);
  return ProcessGroupGloo::createDefaultDevice();
}

// A backend that is being connected, which the thread that waits for it may give up.
struct Connecting {
  Mutex mutex;
  c10::intrusive_ptr<GlooBackend> backend LOCKSTEP_GUARDED_BY(mutex);
};

c10::intrusive_ptr<GlooBackend> connect(const BackendConfig& config, Connecting& connecting,
                                        const std::atomic<bool>& is_left) {
  auto options = ProcessGroupGloo::Options::create(config.connect_timeout);
  options->group_name = config.group_name;
  // Gloo's threads that woke up would interrupt the one that is writing, and then look in vain,
  // again and again, for the lock that it holds, until their share of the processor is used up.
  const BatchScheduling threads_do_not_interrupt;
  options->devices.push_back(make_device(config));
  auto backend =
      c10::make_intrusive<GlooBackend>(config.store, config.rank, config.world_size, options);
  {
    const MutexLock lock(connecting.mutex);
    connecting.backend = backend;
    if (is_left) backend->abort();
  }
  failpoint("connect.reached");
  try {
    // Without this the first rank to be connected may end, and with it the store in which the
    // others still look for addresses.
    backend->barrier()->wait();
  } catch (...) {
    backend->abort();
    backend.release();  // Kept: the destructor would wait for the barrier.
    throw;
  }
  backend->setTimeout(config.timeout);
  return backend;
}

// Gloo connects where nobody can end its waits, as for a peer that is gone before it has connected:
// on a thread of its own, which is left behind where this rank has to go on.
c10::intrusive_ptr<GlooBackend> connect_watched(const BackendConfig& config) {
  const auto connecting = std::make_shared<Connecting>();
  if (!config.while_waiting) return connect(config, *connecting, false);
  const auto store = c10::make_intrusive<WatchedStore>(config.store);
  BackendConfig own = config;
  own.store = store;
  try {
    return run_watched(
        [own, connecting](const std::atomic<bool>& is_left) {
          return connect(own, *connecting, is_left);
        },
        config.while_waiting);
  } catch (...) {
    store->let_go();
    const MutexLock lock(connecting->mutex);
    if (connecting->backend) connecting->backend->abort();
    throw;
  }
}

}  // namespace

std::shared_ptr<NativeBackend> make_gloo_backend(const BackendConfig& config) {
  return std::make_shared<NativeGloo>(connect_watched(config));
}

c10::Device gloo_device(int) {
  return c10::kCPU;
}

}  // namespace lockstep::inline internal
