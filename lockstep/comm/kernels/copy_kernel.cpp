#include "lockstep/comm/kernels/copy_kernel.h"

#include <cstring>

#include "lockstep/comm/kernels/kernel_table.h"

namespace lockstep::inline internal {

void copy(std::byte* target, const std::byte* source, std::size_t bytes, Store store,
          InstructionSet set) {
  if (bytes == 0) return;  // an empty tensor has no address, which memcpy does not take
  if (store == Store::kNonTemporal) {
    kernel_table(set).copy_non_temporal(target, source, bytes);
  } else {
    std::memcpy(target, source, bytes);
  }
}

}  // namespace lockstep::inline internal
