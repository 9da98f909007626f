#include "lockstep/amp/autocast.h"

#include <ATen/autocast_mode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep {
namespace {

void check(const AutocastOptions& options) {
  if (options.device_type != c10::DeviceType::CPU && options.device_type != c10::DeviceType::CUDA) {
    throw UsageError(concat("Autocast: device_type=", c10::DeviceTypeName(options.device_type),
                            " is neither CPU nor CUDA"));
  }
  if (options.dtype && *options.dtype != c10::kBFloat16 && *options.dtype != c10::kHalf) {
    throw UsageError(concat("Autocast: dtype=", c10::toString(*options.dtype),
                            " is neither BFloat16 nor Half; give one of these, or .enabled = false "
                            "to calculate as it is written"));
  }
}

}  // namespace

Autocast::Autocast(const AutocastOptions& options)
    : device_type_(options.device_type),
      cache_enabled_before_(at::autocast::is_autocast_cache_enabled()) {
  check(options);
  enabled_before_ = at::autocast::is_autocast_enabled(device_type_);
  dtype_before_ = at::autocast::get_autocast_dtype(device_type_);
  at::autocast::set_autocast_enabled(device_type_, options.enabled);
  at::autocast::set_autocast_dtype(device_type_, options.dtype.value_or(dtype_before_));
  at::autocast::set_autocast_cache_enabled(options.cache_enabled.value_or(cache_enabled_before_));
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_type_, enabled_before_);
  at::autocast::set_autocast_dtype(device_type_, dtype_before_);
  at::autocast::set_autocast_cache_enabled(cache_enabled_before_);
}

}  // namespace lockstep
