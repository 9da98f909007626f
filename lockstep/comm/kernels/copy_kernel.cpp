#include "lockstep/comm/kernels/copy_kernel.h"

#include <cstring>

#include "lockstep/comm/kernels/kernel_table.h"
#include "lockstep/comm/kernels/reduce_kernel.h"

namespace lockstep {

void copy(std::byte* target, const std::byte* source, std::size_t bytes, Store store,
          InstructionSet set) {
  if (store == Store::kNonTemporal) {
    kernel_table(set).copy_non_temporal(target, source, bytes);
  } else if (bytes > 0) {
    std::memcpy(target, source, bytes);
  }
}

void convert(const Conversion& conversion, std::byte* target, const std::byte* source,
             std::size_t elements, Store store, InstructionSet set) {
  const Reduction scaled{conversion.target, ReduceOp::kAvg, conversion.factor};
  reduce_converted(scaled, conversion.source, {&source, 1}, {&target, 1}, elements, store, set);
}

}  // namespace lockstep
