#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

/// The gradients of some parameters as ranges of one flat tensor, possibly of another dtype and on
/// another device; complex gradients are pairs of real numbers.
class FlatGradients {
 public:
  /// Number of elements of `flat` that the gradients need.
  static std::int64_t elements(const std::vector<at::Tensor>& parameters);
  /// Real dtype of a parameter's gradient.
  static at::ScalarType dtype(const at::Tensor& parameter);

  /// `flat`: at least elements() long.
  FlatGradients(const at::Tensor& flat, const std::vector<at::Tensor>& parameters);

  std::size_t size() const { return slots_.size(); }
  const at::Tensor& parameter(std::size_t position) const { return slots_[position].parameter; }
  /// The parameter's range of the flat tensor, in its shape and strides.
  const at::Tensor& view(std::size_t position) const { return slots_[position].view; }

  /// Copies the gradient times `factor` to its range, or zeros if there is none or a sparse one.
  /// Returns whether there is one. A gradient that already is its range is not copied;
  /// scale_what_was_in_place() multiplies it, because autograd may add to it, or fill() be called
  /// again, before that.
  bool fill(std::size_t position, double factor);
  void clear(std::size_t position);
  /// Call it after the last fill().
  void scale_what_was_in_place();

 private:
  struct Slot {
    at::Tensor parameter;
    at::Tensor view;
    double factor_in_place = 1;  // pending factor of the view
  };
  static bool is_in_place(const Slot& slot);

  std::vector<Slot> slots_;
};

}  // namespace lockstep::inline internal
