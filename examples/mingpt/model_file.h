#pragma once

#include <filesystem>

#include <ATen/core/Tensor.h>

#include "examples/mingpt/vocabulary.h"
#include "lockstep/snapshot/state_dict.h"
#include "models/gpt.h"

namespace mingpt {

/// What a snapshot keeps beside the weights, so that text can be generated from it alone.
lockstep::TensorDict model_description(const models::GptConfig& config,
                                       const Vocabulary& vocabulary);

/// Errors: UsageError naming `source` where `extra`, of a snapshot, describes another model or
/// other characters.
void check_same_model(const lockstep::TensorDict& extra, const models::GptConfig& config,
                      const Vocabulary& vocabulary, const std::string& source);

struct TrainedModel {
  models::Gpt gpt;
  Vocabulary vocabulary;
  std::filesystem::path path;
};

/// The newest whole snapshot of a folder, or the snapshot of that path; on the CPU.
/// Errors: UsageError where there is none, or none of mingpt; CorruptFile; SystemError.
TrainedModel read_model(const std::filesystem::path& path);

/// The tensor of that name. Errors: UsageError naming `source` where there is none.
at::Tensor entry_of(const lockstep::TensorDict& values, const std::string& name,
                    const std::string& source);

}  // namespace mingpt
