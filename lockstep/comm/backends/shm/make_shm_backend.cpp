#include "lockstep/comm/backends/shm/connect.h"
#include "lockstep/comm/backends/shm/shm_backend.h"
#include "lockstep/comm/internal/watched_store.h"

namespace lockstep::inline internal {
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

std::shared_ptr<NativeBackend> make_shm_backend(const BackendConfig& config) {
  const auto backend = connect_shm_backend(config);
  // Works own it too, by c10d's pointer.
  return {backend.get(), [backend](NativeBackend*) {}};
}

c10::Device shm_device(int) {
  return c10::kCPU;
}

}  // namespace lockstep::inline internal
