#pragma once

namespace gloo::transport {

// Held by shared_ptr; created and destroyed inside libtorch_cpu.
class Device;

// Held by unique_ptr members of ProcessGroupGloo's works; destroyed through this virtual
// destructor.
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};

}  // namespace gloo::transport
