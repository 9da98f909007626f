#include "lockstep/comm/backends/shm/connect.h"
#include "lockstep/comm/backends/shm/measure_placement.h"
#include "lockstep/comm/backends/shm/shm_backend.h"
#include "lockstep/comm/internal/watched_store.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {
namespace {

// What is best to exchange at a time, measured on gradients that were just written: what two cores
// with one cache still hold of it, or enough to make up for the way between two caches.
constexpr std::int64_t kBucketBytesNear = 1 << 20;
constexpr std::int64_t kBucketBytesFar = 8 << 20;

}  // namespace

c10::intrusive_ptr<ShmBackend> connect_shm_backend(const BackendConfig& config,
                                                   const std::vector<int>& numbers) {
  // For as long as waking up takes. Ranks that share a core would only keep the peer that they wait
  // for from running.
  constexpr std::chrono::microseconds kSpin{50};
  const auto deadline = Deadline::after(config.connect_timeout);
  const auto store = watched(config.store, config.while_waiting);
  auto engine =
      shm::connect(*store, config.rank, config.world_size, config.group_name,
                   {.local_ranks = config.local_world_size, .numbers = numbers}, deadline);
  const bool spins = engine->team().may_spin();
  if (spins) engine->set_spin(kSpin);
  const Placement placement =
      spins ? shm::measure_placement(engine->team(), *store, deadline) : Placement::kUnknown;
  engine->team().set_placement(placement);
  return c10::make_intrusive<ShmBackend>(std::move(engine), config.timeout);
}

BackendInstance make_shm_backend(const BackendConfig& config) {
  auto backend = connect_shm_backend(config);
  const bool far = backend->engine().team().store() == Store::kNonTemporal;
  return {.backend = backend,
          .takes_cuda = false,
          .checks_calls = true,
          .all_reduce_into =
              [backend = backend.get()](const at::Tensor& output, const at::Tensor& input,
                                        const ReduceIntoOptions& options,
                                        std::chrono::milliseconds timeout) {
                return backend->all_reduce_into(output, input, options, timeout);
              },
          .name_next_call =
              [backend = backend.get()](std::string_view name) { backend->name_next_call(name); },
          .is_shared = [backend = backend.get()](
                           const at::Tensor& tensor) { return backend->is_shared(tensor); },
          .bucket_bytes = far ? kBucketBytesFar : kBucketBytesNear};
}

c10::Device shm_device(int) {
  return c10::kCPU;
}

}  // namespace lockstep::inline internal
