#pragma once

#include <stdexcept>

namespace lockstep::inline internal {

/// A wait ended before its work did: the work goes on and can be waited for again.
class WaitExpired : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace lockstep::inline internal
