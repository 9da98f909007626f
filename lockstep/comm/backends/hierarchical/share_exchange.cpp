#include "lockstep/comm/backends/hierarchical/share_exchange.h"

#include <algorithm>
#include <array>

#include <ATen/ops/from_blob.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/backends/shm/layout.h"
#include "lockstep/comm/internal/store_wait.h"

namespace lockstep::hierarchical {
namespace {

at::Tensor bytes_of(const Share& share) {
  return at::from_blob(
      share.data, {static_cast<std::int64_t>(share.bytes)}, [whole = share.whole](void*) {},
      at::kByte);
}

std::byte* data_of(const at::Tensor& staging) {
  return static_cast<std::byte*>(staging.mutable_data_ptr());
}

}  // namespace

GlooCall::GlooCall(c10::intrusive_ptr<c10d::Work> work, std::shared_ptr<Signal> signal)
    : work_(std::move(work)), ended_(std::make_shared<std::atomic<bool>>(false)) {
  // Called on Gloo's thread, or at once.
  work_->getFuture()->addCallback(
      [ended = ended_, signal = std::move(signal)](c10::ivalue::Future&) {
        ended->store(true);
        signal->raise();
      });
}

bool GlooCall::ended() {
  if (!ended_->load()) return false;
  work_->wait(kNoTimeout);  // Its future is complete: it returns, or throws.
  return true;
}

ShareExchange::ShareExchange(const Machines& machines, std::shared_ptr<NativeBackend> scatter,
                             std::shared_ptr<NativeBackend> spread, std::shared_ptr<Signal> signal)
    : machines_(machines.count),
      machine_(machines.machine),
      partners_(machines.partners),
      scatter_(std::move(scatter)),
      spread_(std::move(spread)),
      signal_(std::move(signal)) {}

// How much of a share each machine sums, among more than two.
std::vector<std::int64_t> ShareExchange::part_bytes(const Share& share) const {
  std::vector<std::int64_t> parts;
  for (int machine = 0; machine < machines_; ++machine) {
    parts.push_back(static_cast<std::int64_t>(shm::share(share.bytes, machines_, machine).bytes));
  }
  return parts;
}

std::int64_t ShareExchange::staging_bytes(const Share& share) const {
  if (!needs_spread()) return static_cast<std::int64_t>(share.bytes);
  return part_bytes(share)[static_cast<std::size_t>(machine_)] * machines_;
}

std::unique_ptr<GlooCall> ShareExchange::start(c10d::Backend& group, at::Tensor output,
                                               at::Tensor input,
                                               std::vector<std::int64_t> output_bytes,
                                               std::vector<std::int64_t> input_bytes,
                                               Deadline deadline) {
  c10d::AllToAllOptions options;
  options.timeout = std::max(deadline.remaining(), std::chrono::milliseconds(1));
  return std::make_unique<GlooCall>(
      group.alltoall_base(output, input, output_bytes, input_bytes, options), signal_);
}

std::unique_ptr<GlooCall> ShareExchange::start_all_to_all(
    const at::Tensor& output, const at::Tensor& input,
    const std::vector<std::int64_t>& output_bytes, const std::vector<std::int64_t>& input_bytes,
    Deadline deadline) {
  return start(scatter_->c10d(), output, input, output_bytes, input_bytes, deadline);
}

std::unique_ptr<GlooCall> ShareExchange::start_broadcast(const Share& share, int source,
                                                         Deadline deadline) {
  std::vector<at::Tensor> tensors{bytes_of(share)};
  c10d::BroadcastOptions options;
  options.rootRank = source;
  options.timeout = std::max(deadline.remaining(), std::chrono::milliseconds(1));
  return std::make_unique<GlooCall>(scatter_->c10d().broadcast(tensors, options), signal_);
}

std::unique_ptr<GlooCall> ShareExchange::start_scatter(const Share& share,
                                                       const at::Tensor& staging,
                                                       Deadline deadline) {
  const at::Tensor input = bytes_of(share);
  if (needs_spread()) {
    const auto parts = part_bytes(share);
    const std::vector<std::int64_t> own(static_cast<std::size_t>(machines_),
                                        parts[static_cast<std::size_t>(machine_)]);
    return start(scatter_->c10d(), staging.narrow(0, 0, staging_bytes(share)), input, own, parts,
                 deadline);
  }
  std::vector<std::int64_t> all_to_the_other(2, static_cast<std::int64_t>(share.bytes));
  all_to_the_other[static_cast<std::size_t>(machine_)] = 0;
  return start(scatter_->c10d(), staging.narrow(0, 0, staging_bytes(share)), input,
               all_to_the_other, all_to_the_other, deadline);
}

void ShareExchange::sum(const Reduction& reduction, const Share& share,
                        const at::Tensor& staging) const {
  std::byte* const other = data_of(staging);
  if (!needs_spread()) {
    std::array<const std::byte*, 2> sources{other, other};
    sources[static_cast<std::size_t>(machine_)] = share.data;
    std::byte* const target = share.data;
    lockstep::reduce(reduction, sources, {&target, 1},
                     share.bytes / element_bytes(reduction.element));
    return;
  }
  // All machines' values of this one's part lie side by side; each place gets the sum, on its way
  // to one of them.
  const auto part =
      static_cast<std::uint64_t>(part_bytes(share)[static_cast<std::size_t>(machine_)]);
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> targets;
  for (int machine = 0; machine < machines_; ++machine) {
    targets.push_back(other + static_cast<std::uint64_t>(machine) * part);
    sources.push_back(targets.back());
  }
  lockstep::reduce(reduction, sources, targets, part / element_bytes(reduction.element));
}

std::unique_ptr<GlooCall> ShareExchange::start_spread(const Share& share, const at::Tensor& staging,
                                                      Deadline deadline) {
  const auto parts = part_bytes(share);
  const std::vector<std::int64_t> own(static_cast<std::size_t>(machines_),
                                      parts[static_cast<std::size_t>(machine_)]);
  return start(spread_->c10d(), bytes_of(share), staging.narrow(0, 0, staging_bytes(share)), parts,
               own, deadline);
}

std::string ShareExchange::name() const {
  std::vector<int> others = partners_;
  others.erase(others.begin() + machine_);
  return concat("the exchange between machines with rank", others.size() > 1 ? "s " : " ",
                join_numbers(others));
}

}  // namespace lockstep::hierarchical
