#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include <torch/torch.h>

/// 4096 random samples of 20 numbers with a random target each: the same in every process; a
/// sampler divides them.
class RandomData : public torch::data::datasets::Dataset<RandomData> {
 public:
  static constexpr std::int64_t kSamples = 4096;

  RandomData() {
    auto generator = at::detail::createCPUGenerator(/*seed_val=*/0);
    inputs_ = torch::rand({kSamples, 20}, generator);
    targets_ = torch::rand({kSamples, 1}, generator);
  }
  torch::data::Example<> get(std::size_t index) override {
    const auto i = static_cast<std::int64_t>(index);
    return {inputs_[i], targets_[i]};
  }
  std::optional<std::size_t> size() const override { return kSamples; }

 private:
  torch::Tensor inputs_;
  torch::Tensor targets_;
};

template <class Sampler>
auto prepare_loader(Sampler sampler, std::int64_t batch_size) {
  return torch::data::make_data_loader(RandomData().map(torch::data::transforms::Stack<>()),
                                       std::move(sampler), static_cast<std::size_t>(batch_size));
}
template <class Sampler>
using Loader = decltype(prepare_loader(std::declval<Sampler>(), 1));

/// Batches that `samples` make.
inline std::int64_t steps_of(std::size_t samples, std::int64_t batch_size) {
  return (static_cast<std::int64_t>(samples) + batch_size - 1) / batch_size;
}
