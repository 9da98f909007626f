#include "lockstep/comm/kernels/copy_kernel.h"

#include <cstring>

#include "lockstep/comm/kernels/kernel_table.h"

namespace lockstep {

void copy(std::byte* target, const std::byte* source, std::size_t bytes, Store store,
          InstructionSet set) {
  if (store == Store::kNonTemporal) {
    kernel_table(set).copy_non_temporal(target, source, bytes);
  } else if (bytes > 0) {
    std::memcpy(target, source, bytes);
  }
}

}  // namespace lockstep
