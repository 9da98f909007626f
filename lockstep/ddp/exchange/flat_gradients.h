#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

/// The gradients of some parameters as parts of one flat tensor, which may be of another dtype than
/// theirs and on another device; complex ones are pairs of real numbers.
class FlatGradients {
 public:
  /// How many elements of `flat` the parameters' gradients take, and of which dtype they are.
  static std::int64_t elements(const std::vector<at::Tensor>& parameters);
  static at::ScalarType dtype(const at::Tensor& parameter);

  /// `flat` has at least as many elements.
  FlatGradients(const at::Tensor& flat, const std::vector<at::Tensor>& parameters);

  std::size_t size() const { return slots_.size(); }
  const at::Tensor& parameter(std::size_t position) const { return slots_[position].parameter; }
  /// The parameter's part of the flat tensor, in its shape and strides.
  const at::Tensor& view(std::size_t position) const { return slots_[position].view; }

  /// Copies the gradient times `factor` to its part, or zeros where there is none or a sparse one.
  /// Returns whether there is one. Without a copy where the gradient is its part: that is
  /// multiplied in scale_what_was_in_place(), as autograd may add to it, and it be filled again,
  /// until then.
  bool fill(std::size_t position, double factor);
  void clear(std::size_t position);
  /// After the last fill().
  void scale_what_was_in_place();

 private:
  struct Slot {
    at::Tensor parameter;
    at::Tensor view;
    double factor_in_place = 1;  // what the view is yet to be multiplied by
  };
  static bool is_in_place(const Slot& slot);

  std::vector<Slot> slots_;
};

}  // namespace lockstep::inline internal
