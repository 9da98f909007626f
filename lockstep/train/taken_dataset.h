#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include <torch/data/dataloader.h>
#include <torch/data/samplers/random.h>
#include <torch/data/samplers/sequential.h>

#include "lockstep/base/error.h"
#include "lockstep/data/data_loader.h"

namespace lockstep {

/// What a data loader of LibTorch was made of.
template <class Dataset>
struct TakenDataset {
  Dataset dataset;
  DataLoaderOptions options;
};

/// LibTorch gives it to those derived from its loader only.
template <class Loader, class Dataset>
struct DatasetOfLoader : Loader {
  static std::unique_ptr<Dataset>& get(Loader& loader) {
    return loader.*(&DatasetOfLoader::main_thread_dataset_);
  }
};

/// The loader has none afterwards. Errors: UsageError for one with workers.
template <class Dataset, class Sampler>
TakenDataset<Dataset> take_dataset(torch::data::StatelessDataLoader<Dataset, Sampler>& loader) {
  constexpr bool kShuffles = std::is_same_v<Sampler, torch::data::samplers::RandomSampler>;
  static_assert(kShuffles || std::is_same_v<Sampler, torch::data::samplers::SequentialSampler>,
                "a loader with this sampler cannot be shared out: give the dataset to "
                "Accelerator::make_data_loader");
  const auto& options = loader.options();
  if (options.workers > 0) {
    throw UsageError(
        "Accelerator::prepare: the data loader has workers, which keep its dataset; give the "
        "dataset to Accelerator::make_data_loader, whose options have workers, too");
  }
  using Base = torch::data::DataLoaderBase<Dataset, typename Dataset::BatchType,
                                           typename Sampler::BatchRequestType>;
  return {.dataset = std::move(*DatasetOfLoader<Base, Dataset>::get(loader)),
          .options = {.batch_size = static_cast<std::int64_t>(options.batch_size),
                      .shuffle = kShuffles,
                      .drop_last = options.drop_last}};
}

}  // namespace lockstep
