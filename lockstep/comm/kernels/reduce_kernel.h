#pragma once

#include <cstddef>
#include <span>

#include "lockstep/comm/kernels/copy_kernel.h"
#include "lockstep/comm/kernels/element.h"
#include "lockstep/comm/kernels/instruction_set.h"
#include "lockstep/comm/reduce_op.h"

/// The arithmetic of the shared-memory backend: pure functions over bytes, with vectors as wide as
/// the machine has. Which instructions run changes no bit of a result, with one exception: where an
/// operation makes a NaN or meets several, the sign and payload of the NaN that it leaves are the
/// processor's choice.
/// Pointers are aligned to their elements, no more. Threads: any.
namespace lockstep::inline internal {

/// kSum and kProduct wrap around on overflow of an integer. kAvg multiplies the sum by `factor`,
/// 1 / ranks; floating point only. kMin and kMax give the first NaN if there is one, else the first
/// of equals, so of zeros of either sign. kBand, kBor and kBxor are for integers and bool only.
/// Of bools, where any byte but 0 is true: kSum, kMax and kBor are "or", kProduct, kMin and kBand
/// "and"; results are 0 or 1.
struct Reduction {
  Element element;
  ReduceOp op;
  double factor = 1;
};

/// targets[t][i] = op over s = 0, 1, ... of sources[s][i], for every t and in this order of s, so
/// that the same bits come out wherever it runs. A target may be the very pointer of a source (in
/// place); otherwise they do not overlap. Store::kNonTemporal is for targets that are not also a
/// source; those that are stay ordinary, whatever `store` says.
/// float16 and bfloat16 are computed in float32 and rounded once, to nearest even.
void reduce(const Reduction& reduction, std::span<const std::byte* const> sources,
            std::span<std::byte* const> targets, std::size_t elements,
            Store store = Store::kOrdinary, InstructionSet set = best_instruction_set());

/// As reduce, kSum and kAvg alone, from sources of float16 or bfloat16 to targets of float32.
/// `reduction.element` is that of the targets.
void reduce_converted(const Reduction& reduction, Element source_element,
                      std::span<const std::byte* const> sources,
                      std::span<std::byte* const> targets, std::size_t elements,
                      Store store = Store::kOrdinary, InstructionSet set = best_instruction_set());

/// As reduce, or as reduce_converted where the elements differ; returns the sum of the squares of
/// the results as they lie in the targets, floating point only: in double, in an order that depends
/// on `elements` alone.
double reduce_and_sum_squares(const Reduction& reduction, Element source_element,
                              std::span<const std::byte* const> sources,
                              std::span<std::byte* const> targets, std::size_t elements,
                              Store store = Store::kOrdinary,
                              InstructionSet set = best_instruction_set());

/// The sum of the squares of `elements` values, floating point only, as above: the same bits.
double sum_of_squares(Element element, const std::byte* values, std::size_t elements,
                      InstructionSet set = best_instruction_set());

}  // namespace lockstep::inline internal
