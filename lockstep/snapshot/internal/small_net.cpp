#include "lockstep/snapshot/internal/small_net.h"

#include <ATen/ATen.h>

#include "lockstep/snapshot/internal/snapshot_testing.h"
#include "lockstep/snapshot/state_dict.h"

namespace lockstep::testing {

SmallNetImpl::SmallNetImpl(int hidden)
    : first(register_module("first", torch::nn::Linear(4, hidden))),
      norm(register_module("norm", torch::nn::BatchNorm1d(hidden))),
      dropout(register_module("dropout", torch::nn::Dropout(0.5))),
      second(register_module("second", torch::nn::Linear(hidden, 2))) {}

at::Tensor SmallNetImpl::forward(const at::Tensor& input) {
  return second->forward(dropout->forward(norm->forward(first->forward(input)).relu()));
}

void train(SmallNet& net, torch::optim::Optimizer& optimizer, int steps) {
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor input = at::randn({6, 4});
    (net->forward(input) - input.sum(1, true)).square().mean().backward();
    optimizer.step();
  }
}

bool same_weights(const SmallNet& a, const SmallNet& b) {
  const TensorDict x = state_dict(*a);
  const TensorDict y = state_dict(*b);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i].first != y[i].first || !same_bits(x[i].second, y[i].second)) return false;
  }
  return x.size() == y.size();
}

}  // namespace lockstep::testing
