#include "lockstep/fully_shard/internal/common_memory.h"

#include <memory>
#include <span>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/one_copy/internal/pass_files.h"
#include "lockstep/os/memory/memory_file.h"

namespace lockstep::inline internal {

at::Tensor tensor_of_all_ranks(const ProcessGroup& group, std::int64_t elements,
                               at::ScalarType dtype, const std::string& name) {
  if (elements == 0) return at::empty({0}, at::TensorOptions(dtype));
  const auto share =
      static_cast<std::uint64_t>(elements / group.world_size()) * c10::elementSize(dtype);
  const auto rank = static_cast<std::uint64_t>(group.rank());
  const auto ranks = static_cast<std::uint64_t>(group.world_size());
  const bool is_first = group.rank() == 0;
  UniqueFd file;
  run_on_all(group, concat("allocate the memory of ", name), [&] {
    if (is_first) file = make_memory_file(name.c_str(), share * ranks);
  });
  const int own = file.get();
  const FilePassing passing{.receivers = group.world_size() - 1,
                            .is_receiver = !is_first,
                            .files = 1,
                            .purpose = "fully_shard"};
  std::vector<UniqueFd> received = pass_files(group, passing, std::span(&own, is_first ? 1U : 0U));
  if (!is_first) file = std::move(received.front());
  auto mapping = std::make_shared<SharedMapping>();
  run_on_all(group, concat("map the memory of ", name), [&] {
    *mapping = SharedMapping(file.get(), share * ranks);
    // Each rank its own part, so that it lies near the rank's processor.
    mapping->populate(rank * share, share);
  });
  return at::from_blob(
      mapping->data(), {elements}, [mapping](void*) {}, at::TensorOptions(dtype));
}

}  // namespace lockstep::inline internal
