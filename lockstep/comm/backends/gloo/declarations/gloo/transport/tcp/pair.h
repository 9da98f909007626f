#pragma once

namespace gloo::transport {

// A connection to another rank, held by a context.
class Pair {
 public:
  virtual ~Pair() = 0;
};

namespace tcp {

class Pair : public transport::Pair {
 public:
  ~Pair() override;
  bool isConnected();  // Virtual in Gloo; called by its symbol here.
};

}  // namespace tcp
}  // namespace gloo::transport
