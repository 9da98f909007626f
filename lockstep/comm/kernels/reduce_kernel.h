#pragma once

#include <cstddef>
#include <span>

#include "lockstep/comm/kernels/copy_kernel.h"
#include "lockstep/comm/kernels/element.h"
#include "lockstep/comm/kernels/instruction_set.h"
#include "lockstep/comm/reduce_op.h"

/// The arithmetic of the shared-memory backend: pure functions over bytes, with the widest vectors
/// of the machine. Results have the same bits with any instruction set, with one exception: if an
/// operation creates a NaN or has several as inputs, the processor chooses the sign and payload of
/// the resulting NaN. Pointers need only the alignment of their elements.
/// Threads: any.
namespace lockstep::inline internal {

/// A reduction of elements. kSum and kProduct of integers wrap around on overflow. kAvg multiplies
/// the sum by `factor`, 1 / ranks; floating point only. kMin and kMax return the first NaN if there
/// is one, else the first of equal values, also of +0 and -0. kBand, kBor and kBxor are for
/// integers and bool only. For bool any byte but 0 is true: kSum, kMax and kBor are "or", kProduct,
/// kMin and kBand "and"; results are 0 or 1.
struct Reduction {
  Element element;
  ReduceOp op;
  double factor = 1;
};

/// targets[t][i] = op over s = 0, 1, … of sources[s][i], for every t and in this order of s: the
/// same bits on any machine. A target may be the same pointer as a source (in place); else they
/// must not overlap. Store::kNonTemporal applies to targets that are not also a source. float16 and
/// bfloat16 are computed in float32 and rounded once, to nearest even.
void reduce(const Reduction& reduction, std::span<const std::byte* const> sources,
            std::span<std::byte* const> targets, std::size_t elements,
            Store store = Store::kOrdinary, InstructionSet set = best_instruction_set());

/// Like reduce, for kSum and kAvg, from float16 or bfloat16 sources to float32 targets.
/// `reduction.element` is the targets'.
void reduce_converted(const Reduction& reduction, Element source_element,
                      std::span<const std::byte* const> sources,
                      std::span<std::byte* const> targets, std::size_t elements,
                      Store store = Store::kOrdinary, InstructionSet set = best_instruction_set());

/// Like reduce, or reduce_converted if the elements differ. Returns the sum of squares of the
/// results in the targets, for floating point only, in double, in an order that depends only on
/// `elements`.
double reduce_and_sum_squares(const Reduction& reduction, Element source_element,
                              std::span<const std::byte* const> sources,
                              std::span<std::byte* const> targets, std::size_t elements,
                              Store store = Store::kOrdinary,
                              InstructionSet set = best_instruction_set());

/// The sum of squares of `elements` floating-point values, with the same bits as
/// reduce_and_sum_squares.
double sum_of_squares(Element element, const std::byte* values, std::size_t elements,
                      InstructionSet set = best_instruction_set());

}  // namespace lockstep::inline internal
