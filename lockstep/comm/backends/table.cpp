#include <algorithm>
#include <array>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/backends/gloo/gloo_backend.h"
#include "lockstep/comm/backends/hierarchical/hierarchical_backend.h"
#include "lockstep/comm/backends/mpi/mpi_backend.h"
#include "lockstep/comm/backends/nccl/nccl_backend.h"
#include "lockstep/comm/backends/shm/shm_backend.h"
#include "lockstep/comm/internal/backend_factory.h"

namespace lockstep::inline internal {
namespace {

struct Entry {
  std::string_view name;
  c10::Device (*device)(int local_rank);
  std::shared_ptr<NativeBackend> (*make)(const BackendConfig&);
};

// A new backend is a folder beside this file and a line here.
constexpr std::array kBackends = {
    Entry{"gloo", &gloo_device, &make_gloo_backend},
    Entry{"hierarchical", &hierarchical_device, &make_hierarchical_backend},
    Entry{"mpi", &mpi_device, &make_mpi_backend},
    Entry{"nccl", &nccl_device, &make_nccl_backend},
    Entry{"shm", &shm_device, &make_shm_backend},
};

const Entry& find(const std::string& name) {
  const auto entry = std::find_if(kBackends.begin(), kBackends.end(),
                                  [&](const Entry& candidate) { return candidate.name == name; });
  if (entry != kBackends.end()) return *entry;
  std::string known;
  for (const Entry& candidate : kBackends)
    known += concat(known.empty() ? "" : ", ", candidate.name);
  throw UsageError(concat("there is no backend '", name, "'; choose one of: ", known));
}

}  // namespace

std::shared_ptr<NativeBackend> make_backend(const std::string& name, const BackendConfig& config) {
  return find(name).make(config);
}

c10::Device backend_device(const std::string& name, int local_rank) {
  return find(name).device(local_rank);
}

bool has_cuda_device_each(int local_world_size) {
  return cuda_device_count() >= local_world_size;
}

}  // namespace lockstep::inline internal
