#pragma once

#include <cstddef>
#include <cstdint>

#include <torch/torch.h>

/// 4096 random samples of 20 numbers with a random target each: the same in every process, which a
/// sampler divides.
class RandomData : public torch::data::datasets::Dataset<RandomData> {
 public:
  static constexpr std::int64_t kSamples = 4096;

  RandomData() {
    torch::manual_seed(0);
    inputs_ = torch::rand({kSamples, 20});
    targets_ = torch::rand({kSamples, 1});
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
