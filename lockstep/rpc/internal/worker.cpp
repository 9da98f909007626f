#include "lockstep/rpc/internal/worker.h"

#include <algorithm>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/comm/internal/agreement.h"
#include "lockstep/comm/internal/error_text.h"
#include "lockstep/rpc/internal/agent.h"
#include "lockstep/rpc/internal/autograd_record.h"
#include "lockstep/rpc/internal/local_meeting.h"
#include "lockstep/rpc/internal/meeting.h"
#include "lockstep/rpc/internal/rref_state.h"
#include "lockstep/rpc/rref.h"

namespace lockstep::rpc::inline internal {
namespace {

namespace torch_rpc = torch::distributed::rpc;
namespace torch_autograd = torch::distributed::autograd;

struct Current {
  Mutex mutex;
  std::shared_ptr<Worker> worker LOCKSTEP_GUARDED_BY(mutex);
};

Current& current() {
  static Current instance;
  return instance;
}

// With more, each would hold thousands of sockets: they are connected at their first call.
constexpr int kConnectsToAll = 32;

// Each fails only where another program connects to a worker's port in the moment between its
// listening and the last worker's connection.
constexpr int kMostTries = 3;

// Finish what takes its time to be made, and may wait for other workers.
constexpr int kLaterThreads = 2;

// Who is lost so soon after another may have ended for that reason.
constexpr std::chrono::seconds kFollows{5};

// LibTorch counts milliseconds in an int.
constexpr std::chrono::hours kLongestTimeout{24 * 24};

void check_timeout(const std::string& what, std::chrono::milliseconds timeout) {
  if (timeout > std::chrono::milliseconds(0) && timeout <= kLongestTimeout) return;
  throw UsageError(
      concat(what, ": a timeout of ", timeout.count(), " ms; more than 0, and at most 24 days"));
}

std::string problem_of(const Options& options) {
  try {
    check_timeout("the options", options.timeout);
  } catch (const UsageError& error) {
    return error.what();
  }
  if (options.max_message_bytes < 1)
    return concat("max_message_bytes is ", options.max_message_bytes, "; at least 1");
  if (options.num_worker_threads < 1)
    return concat("num_worker_threads is ", options.num_worker_threads, "; at least 1");
  return {};
}

// While it lives the store waits no longer for what a worker is to write there.
class StoreTimeout {
 public:
  StoreTimeout(c10d::Store& store, const Deadline& deadline)
      : store_(store), before_(store.getTimeout()) {
    store_.setTimeout(deadline.remaining() + std::chrono::milliseconds(1));
  }
  ~StoreTimeout() { store_.setTimeout(before_); }
  StoreTimeout(const StoreTimeout&) = delete;
  StoreTimeout& operator=(const StoreTimeout&) = delete;

 private:
  c10d::Store& store_;
  const std::chrono::milliseconds before_;
};

float in_seconds(std::chrono::milliseconds timeout) {
  return std::chrono::duration<float>(timeout).count();
}

}  // namespace

Worker::Worker(std::string name, ProcessGroup group, Options options)
    : name_(std::move(name)),
      group_(std::move(group)),
      options_(std::move(options)),
      rank_(group_.rank()),
      lost_(static_cast<std::size_t>(group_.world_size())),
      loss_causes_(static_cast<std::size_t>(group_.world_size())) {
  for (auto& cause : loss_causes_) cause = kNobody;
}

Worker::~Worker() {
  stop();
}

void Worker::start() {
  WorkerDescription own{
      .name = name_, .device_maps = options_.device_maps, .problem = problem_of(options_)};
  const Deadline deadline =
      Deadline::after(own.problem.empty() ? options_.timeout : Options{}.timeout);
  std::optional<LocalMeeting> local;
  try {
    local.emplace().describe(own);
  } catch (const SystemError& error) {
    own.problem = error.what();
  }
  const auto cards = exchange_cards(group_, own, deadline);
  check_cards(cards);
  auto sockets = local->connect(group_, cards, deadline);
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    workers_.push_back({cards[rank].name, static_cast<int>(rank)});
  }
  auto plan = plan_devices(cards, rank_);
  reverse_device_maps_ = std::move(plan.reverse);
  quiet_.emplace(QuietC10d::kErrors);
  init_autograd(rank_);
  functions_pool_ = std::make_unique<c10::ThreadPool>(options_.num_worker_threads);
  {
    const MutexLock lock(later_mutex_);
    later_pool_ = std::make_unique<c10::ThreadPool>(kLaterThreads);
  }
  auto store = group_.c10d_store();
  if (!store) store = c10::make_intrusive<c10d::HashStore>();
  const StoreTimeout limited(*store, deadline);
  start_agent(store, plan.devices);
  if (group_.world_size() <= kConnectsToAll) {
    for (int tries = 1; !connect_to_all(tries == kMostTries, deadline); ++tries) {
      stop_agent();
      start_agent(store, plan.devices);
    }
    agent_->stop_listening();
  }
  notes_losses_ = true;
  agent_->connect_locally(std::move(sockets));
}

void Worker::start_agent(const c10::intrusive_ptr<c10d::Store>& store,
                         const std::vector<c10::Device>& devices) {
  const auto own =
      c10::make_intrusive<c10d::PrefixStore>(concat("rpc/", count_replica(group_)), store);
  agent_ =
      std::make_shared<Agent>(own, group_, name_, options_, reverse_device_maps_, devices, *this);
  torch_rpc::RpcAgent::setCurrentRpcAgent(agent_);
  agent_->start();
  failpoint("rpc.listening");
}

void Worker::stop_agent() noexcept {
  try {
    agent_->shutdown();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, concat("rpc: closing worker '", name_, "': ", error.what()));
  }
  try {
    torch_rpc::RpcAgent::setCurrentRpcAgent(nullptr);
  } catch (const std::exception&) {
    // It was not set: start() had not come so far.
  }
}

// Collective: whether each worker has reached all others. One that another has not reached may
// live: a connection that is no worker's ends TensorPipe's listening for good, and a rank of
// another job that waits for its rank 0 tries a port which the system may have given to a worker.
// Only the group knows who is lost: its collective ends with PeerLost then.
bool Worker::connect_to_all(bool is_last_try, const Deadline& deadline) {
  const std::optional<int> own = greet_all(deadline);
  if (!own) notes_losses_ = true;  // When all have connected others may call at once.
  at::Tensor all = at::full({1}, own.value_or(kNobody), at::kLong).to(group_.device());
  group_.all_reduce(all, {.op = ReduceOp::kMax,
                          .timeout = deadline.remaining() + std::chrono::milliseconds(1),
                          .name = "rpc::init"});
  const auto unreached = static_cast<int>(all.item<std::int64_t>());
  if (unreached == kNobody) return true;
  notes_losses_ = false;
  const std::string what =
      concat("lost the connection to ", describe(unreached), ", which still runs");
  if (is_last_try) {
    throw CommError({.operation = concat("rpc::init of ", describe(rank_)), .ranks = {unreached}},
                    concat(what, ", in each of ", kMostTries,
                           " tries; check for programs that connect to any port of its machine"));
  }
  if (unreached == rank_) {
    log(LogLevel::kWarning,
        concat("rpc::init: ", what,
               "; another program may have connected to its port; all workers connect again"));
  }
  return false;
}

// Returns a worker that could not be reached.
std::optional<int> Worker::greet_all(const Deadline& deadline) {
  std::vector<std::shared_ptr<PendingCall>> greetings;
  for (const WorkerInfo& worker : workers_) {
    greetings.push_back(send(worker.rank, {.kind = CallRequest::Kind::kHello},
                             deadline.remaining() + std::chrono::milliseconds(1)));
  }
  std::optional<int> unreached;
  for (std::size_t rank = 0; rank < greetings.size(); ++rank) {
    try {
      greetings[rank]->wait();
    } catch (const PeerLost&) {
      unreached = static_cast<int>(rank);
    }
  }
  return unreached;
}

void Worker::finish(const Deadline& deadline) {
  if (!agent_ || stopped()) return;
  // A call that is served may make others. Nothing is under way when as many were served in one
  // round as were sent by the next, in which nobody waits for an answer (Mattern, "Algorithms for
  // distributed termination detection", 1987).
  std::int64_t served_before = -1;
  for (;;) {
    if (!agent_->wait_until_answered(deadline)) {
      throw TimeoutError({.operation = concat("rpc::shutdown of ", describe(rank_))},
                         "a call is not answered yet");
    }
    at::Tensor counts = at::zeros({2}, at::TensorOptions().dtype(at::kLong));
    counts[0] = agent_->sent();
    counts[1] = agent_->served();
    counts = counts.to(group_.device());
    group_.all_reduce(counts, {.timeout = deadline.remaining() + std::chrono::milliseconds(1)});
    const auto sent = counts[0].item<std::int64_t>();
    if (sent == served_before) return;
    served_before = counts[1].item<std::int64_t>();
    if (deadline.passed()) {
      throw TimeoutError({.operation = concat("rpc::shutdown of ", describe(rank_))},
                         concat(sent - served_before, " calls are still being served"));
    }
  }
}

void Worker::stop() noexcept {
  if (stopped_.exchange(true) || !agent_) return;
  agent_->stop_locally();
  stop_agent();
  functions_pool_.reset();
  std::unique_ptr<c10::ThreadPool> later;
  {
    const MutexLock lock(later_mutex_);
    later = std::move(later_pool_);
  }
  later.reset();
  quiet_.reset();
}

const WorkerInfo& Worker::find(const std::string& name) const {
  const auto found = std::ranges::find(workers_, name, &WorkerInfo::name);
  if (found != workers_.end()) return *found;
  std::vector<std::string> names;
  for (const WorkerInfo& worker : workers_) names.push_back(worker.name);
  throw UsageError(concat("rpc: there is no worker '", name, "'", did_you_mean(name, names)));
}

const WorkerInfo& Worker::find(int rank) const {
  if (rank < 0 || rank >= static_cast<int>(workers_.size())) {
    throw UsageError(
        concat("rpc: there is no worker of rank ", rank, "; there are ", workers_.size()));
  }
  return workers_[static_cast<std::size_t>(rank)];
}

std::string Worker::describe(int rank) const {
  return concat("worker '", find(rank).name, "' (rank ", rank, ")");
}

void Worker::note_lost(int rank) {
  if (stopped() || !notes_losses_) return;  // It may be this worker that closed the connection.
  const auto index = static_cast<std::size_t>(rank);
  if (lost_[index]) return;
  note_first_lost(rank);
  int unknown = kNobody;
  loss_causes_[index].compare_exchange_strong(unknown, first_lost_);
  if (lost_[index].exchange(true)) return;
  agent_->notify_loss(rank);
  rrefs_.note_gone(rank);
}

void Worker::note_told_of_loss(std::int64_t rank) noexcept {
  if (stopped() || rank < 0 || rank >= group_.world_size() || rank == rank_) return;
  note_first_lost(static_cast<int>(rank));
}

void Worker::note_never_sent() noexcept {
  agent_->count_never_sent();
}

void Worker::note_first_lost(int rank) noexcept {
  const auto now = Deadline::Clock::now();
  if (now - last_loss_.exchange(now) > kFollows) first_lost_ = rank;
}

std::optional<int> Worker::lost_worker() const {
  const int first = first_lost_.load();
  return first == kNobody ? std::nullopt : std::optional(first);
}

// Who follows another's end is not to blame.
PeerLost Worker::loss_of(int rank, ErrorFields fields) const {
  const int cause = loss_causes_[static_cast<std::size_t>(rank)].load();
  const int first = cause == kNobody ? first_lost_.load() : cause;
  fields.ranks = {rank};
  if (first == kNobody || first == rank)
    return {fields, "it is gone; see its output for the reason"};
  fields.ranks = {std::min(rank, first), std::max(rank, first)};
  return {fields, concat("it is gone, after ", describe(first),
                         "; see the output of that worker for the reason")};
}

RRefKey Worker::next_key(int owner) {
  return {.owner = owner, .creator = rank_, .number = next_number_++};
}

void Worker::release(const RRefKey& key, int holder) noexcept {
  try {
    if (key.owner == rank_) {
      rrefs_.release(key, holder);
    } else if (!is_lost(key.owner)) {
      send(key.owner, {.kind = CallRequest::Kind::kRelease, .rref = key, .holder = holder},
           std::nullopt);
    }
  } catch (const std::exception&) {
    // The owner is gone, or this worker has stopped: there is nothing to give back.
  }
}

void Worker::release_all(const std::vector<RRefKey>& keys, int holder) noexcept {
  for (const RRefKey& key : keys) release(key, holder);
}

ValueContext Worker::incoming(Way way) {
  ValueContext context;
  context.make_rref = [this, way](const RRefKey& key) {
    find(key.owner);
    if (key.owner == rank_ && way == Way::kCall) rrefs_.hold(key, rank_);
    return RRef(c10::make_intrusive<RRefState>(weak_from_this(), key)).to_value();
  };
  return context;
}

// Who passes a reference on tells the owner first that the target will hold it, so that the value
// is there whatever becomes of this worker's own reference. In a call to the owner itself it is
// only named, and `kept` until the answer is here.
ValueContext Worker::outgoing(int target, Way way, Baggage& baggage) {
  ValueContext context;
  context.name_rref = [this, target, way, &baggage](const c10::IValue& value) {
    const RRef rref = RRef::from_value(value);
    rref.state().wait_until_ready();
    const RRefKey& key = rref.state().key();
    if (key.owner == target && way == Way::kCall) {
      baggage.kept.push_back(value);
      return key;
    }
    if (key.owner == rank_) {
      rrefs_.hold(key, target);
    } else {
      send(key.owner, {.kind = CallRequest::Kind::kHold, .rref = key, .holder = target},
           std::nullopt)
          ->wait();
    }
    baggage.held.push_back(key);
    return key;
  };
  return context;
}

void Worker::check_size(const MessageData& parcel) const {
  std::size_t size_bytes = parcel.bytes.size();
  for (const at::Tensor& tensor : parcel.tensors) size_bytes += tensor.nbytes();
  if (size_bytes > static_cast<std::size_t>(options_.max_message_bytes)) {
    throw UsageError(too_large(size_bytes, options_.max_message_bytes));
  }
}

std::shared_ptr<PendingCall> Worker::send(int target, CallRequest request,
                                          std::optional<std::chrono::milliseconds> timeout,
                                          std::vector<c10::IValue> kept) {
  using Kind = CallRequest::Kind;
  const std::string what = request.function.empty() ? concat("rpc to ", describe(target))
                                                    : concat("rpc call of '", request.function,
                                                             "' on ", describe(target));
  if (!agent_ || stopped()) throw UsageError(concat(what, ": rpc has been shut down"));
  const auto limit = timeout.value_or(options_.timeout);
  check_timeout(what, limit);
  const auto loss = [&] { return loss_of(target, {.operation = what, .timeout = limit}); };
  if (is_lost(target)) throw loss();

  request.from = rank_;
  auto& container = torch_autograd::DistAutogradContainer::getInstance();
  const bool counts_references = request.kind == Kind::kHold || request.kind == Kind::kRelease;
  if (!counts_references && container.hasValidContext()) {
    const auto context = container.currentContext();
    request.autograd = {context->contextId(), container.newAutogradMessageId()};
    context->addKnownWorkerId(static_cast<torch_rpc::worker_id_t>(target));
  }
  Baggage baggage{.kept = std::move(kept), .held = {}};
  MessageData parcel;
  try {
    parcel = write_request(request, outgoing(target, Way::kCall, baggage));
    check_size(parcel);
    if (request.autograd) record_send(*request.autograd, parcel.tensors);
  } catch (const UsageError& error) {
    release_all(baggage.held, target);
    throw UsageError(concat(what, ": ", error.what()));
  } catch (...) {
    release_all(baggage.held, target);
    throw;
  }
  const std::vector<at::Tensor> arguments =
      request.autograd ? parcel.tensors : std::vector<at::Tensor>();
  auto message = c10::make_intrusive<torch_rpc::Message>(
      std::move(parcel.bytes), std::move(parcel.tensors), torch_rpc::MessageType::PYTHON_CALL);
  try {
    const auto& to =
        agent_->TensorPipeAgent::getWorkerInfo(static_cast<torch_rpc::worker_id_t>(target));
    auto answer = agent_->send(to, std::move(message), in_seconds(limit), {});
    if (!baggage.kept.empty())
      answer->addCallback([kept = std::move(baggage.kept)](c10::ivalue::Future&) {});
    return std::make_shared<PendingCall>(weak_from_this(), target, what, limit, std::move(answer),
                                         arguments);
  } catch (const std::exception& error) {
    release_all(baggage.held, target);
    if (is_lost(target)) throw loss();
    throw UsageError(concat(what, ": ", error_text(error)));
  }
}

void Worker::poll_for(const c10::ivalue::Future& answer, int target) {
  if (!stopped()) agent_->poll_for(answer, target);
}

std::unordered_map<c10::Device, c10::Device> Worker::gradients_back_to(int rank) const {
  const auto found = reverse_device_maps_.find(find(rank).name);
  return found == reverse_device_maps_.end() ? std::unordered_map<c10::Device, c10::Device>()
                                             : found->second;
}

std::shared_ptr<Worker> current_worker_or_null() {
  const MutexLock lock(current().mutex);
  return current().worker;
}

std::shared_ptr<Worker> current_worker() {
  auto worker = current_worker_or_null();
  if (!worker) throw UsageError("rpc: call rpc::init first");
  return worker;
}

void set_current_worker(std::shared_ptr<Worker> worker) {
  const MutexLock lock(current().mutex);
  current().worker = std::move(worker);
}

}  // namespace lockstep::rpc::inline internal
