#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <torch/data/samplers/base.h>

#include "lockstep/data/loader_position.h"

namespace lockstep {

/// Gives LibTorch's data loader the batches of the epoch that was begun at a position.
class EpochSampler : public torch::data::samplers::Sampler<> {
 public:
  explicit EpochSampler(std::shared_ptr<LoaderPosition> position)
      : position_(std::move(position)) {}

  std::optional<std::vector<std::size_t>> next(std::size_t) override {
    return position_->next_indices();
  }
  // The position begins epochs, and is what is saved.
  void reset(std::optional<std::size_t> = std::nullopt) override {}
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  std::shared_ptr<LoaderPosition> position_;
};

}  // namespace lockstep
