#include <map>
#include <string>
#include <string_view>

#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/readable_file.h"
#include "lockstep/snapshot/checkpoint.h"
#include "lockstep/snapshot/state_dict.h"
#include "models/gpt2.h"

namespace models {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kConfigName = "config.json";
constexpr std::uint64_t kMaxConfigBytes = 1u << 20;
/// The model "gpt2" was published without it.
constexpr std::string_view kPrefix = "transformer.";

Gpt2Config config_of(const std::filesystem::path& folder) {
  const lockstep::ReadableFile file(folder / kConfigName);
  const std::string source = lockstep::concat("read ", file.path().string());
  const auto refuse = [&](const std::string& what) {
    throw lockstep::UsageError(lockstep::concat(source, ": ", what, "; name a folder of a GPT-2"));
  };
  if (file.size_bytes() > kMaxConfigBytes) refuse("it is larger than any configuration");
  const Json json = Json::parse(file.text(), nullptr, /*allow_exceptions=*/false);
  Gpt2Config config;
  try {
    if (json.at("model_type") != "gpt2") refuse("its model_type is not gpt2");
    // What changes the result, and has another value in models that others derived from it.
    if (json.value("activation_function", "gelu_new") != "gelu_new" ||
        json.value("scale_attn_by_inverse_layer_idx", false) ||
        !json.value("scale_attn_weights", true) || !json.value("tie_word_embeddings", true) ||
        (json.contains("n_inner") && !json["n_inner"].is_null() &&
         json["n_inner"] != 4 * json.at("n_embd").get<std::int64_t>())) {
      refuse("it is a variant of GPT-2 that is not supported");
    }
    config = {.n_layer = json.at("n_layer"),
              .n_head = json.at("n_head"),
              .n_embd = json.at("n_embd"),
              .vocab_size = json.at("vocab_size"),
              .n_positions = json.at("n_positions"),
              .layer_norm_epsilon = json.value("layer_norm_epsilon", 1e-5),
              .embd_pdrop = json.value("embd_pdrop", 0.1),
              .resid_pdrop = json.value("resid_pdrop", 0.1),
              .attn_pdrop = json.value("attn_pdrop", 0.1)};
  } catch (const Json::exception& error) {
    refuse(error.what());
  }
  return config;
}

/// Causal masks, which older files have, and the head, which is the embedding once more.
bool is_derived(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name == "lm_head.weight";
}

}  // namespace

Gpt2 load_pretrained_gpt2(const std::filesystem::path& folder) {
  Gpt2 model(config_of(folder));
  const lockstep::CheckpointReader reader(folder);
  const std::string source = lockstep::concat("read ", folder.string());
  std::map<std::string, at::Tensor> wanted;
  for (const auto& [name, tensor] : lockstep::state_dict(*model)) wanted.emplace(name, tensor);
  const at::NoGradGuard no_grad;
  for (const lockstep::CheckpointTensor& tensor : reader.tensors()) {
    if (is_derived(tensor.name)) continue;
    const std::string name =
        tensor.name.starts_with(kPrefix) ? tensor.name : std::string(kPrefix) + tensor.name;
    const auto target = wanted.find(name);
    if (target == wanted.end() || target->second.sizes() != at::IntArrayRef(tensor.shape)) {
      throw lockstep::UsageError(
          lockstep::concat(source, ": '", tensor.name, "' of shape ", at::IntArrayRef(tensor.shape),
                           " is no weight of the model in config.json; take both from one folder"));
    }
    target->second.copy_(reader.read(tensor.name));
    wanted.erase(target);
  }
  if (!wanted.empty()) {
    throw lockstep::UsageError(lockstep::concat(source, ": it has no '", wanted.begin()->first,
                                                "'; take config.json and weights from one folder"));
  }
  return model;
}

void save_pretrained(const Gpt2& model, const std::filesystem::path& folder, int shards) {
  save_pretrained(model->config(), lockstep::state_dict(*model), folder, shards);
}

void save_pretrained(const Gpt2Config& config, const lockstep::TensorDict& weights,
                     const std::filesystem::path& folder, int shards) {
  const Json json = {{"architectures", {"GPT2LMHeadModel"}},
                     {"model_type", "gpt2"},
                     {"activation_function", "gelu_new"},
                     {"n_layer", config.n_layer},
                     {"n_head", config.n_head},
                     {"n_embd", config.n_embd},
                     {"vocab_size", config.vocab_size},
                     {"n_positions", config.n_positions},
                     {"layer_norm_epsilon", config.layer_norm_epsilon},
                     {"embd_pdrop", config.embd_pdrop},
                     {"resid_pdrop", config.resid_pdrop},
                     {"attn_pdrop", config.attn_pdrop},
                     {"tie_word_embeddings", true}};
  lockstep::save_checkpoint(
      folder, weights, {.shards = shards, .extra_files = {{kConfigName, json.dump(2) + "\n"}}});
}

}  // namespace models
