#include "examples/mingpt/config_keys.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include "lockstep/base/internal/concat.h"

namespace mingpt {
namespace {

using Json = nlohmann::json;
using lockstep::concat;

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

/// `field` gives the value in a configuration, to be read or set.
template <class Field>
ConfigKey integer(std::string name, Field field, std::int64_t least, std::int64_t most = kMost) {
  return {std::move(name),
          [=](Config& config, const Json& value) {
            const bool fits = value.is_number_integer() && value >= least && value <= most;
            if (!fits) return concat("must be an integer from ", least, " to ", most);
            field(config) = value.get<std::int64_t>();
            return std::string();
          },
          [=](const Config& config) { return Json(field(config)); }};
}

template <class Field>
ConfigKey number(std::string name, Field field, double least,
                 double most = std::numeric_limits<double>::max()) {
  return {std::move(name),
          [=](Config& config, const Json& value) {
            const bool fits = value.is_number() && value >= least && value <= most;
            if (!fits) {
              return most < std::numeric_limits<double>::max()
                         ? concat("must be a number from ", least, " to ", most)
                         : concat("must be a number of at least ", least);
            }
            field(config) = value.get<double>();
            return std::string();
          },
          [=](const Config& config) { return Json(field(config)); }};
}

/// At least 0 and below 1: a decay.
template <class Field>
ConfigKey decay(std::string name, Field field) {
  return {std::move(name),
          [=](Config& config, const Json& value) {
            if (!value.is_number() || value < 0 || value >= 1) {
              return std::string("must be a number from 0 to below 1");
            }
            field(config) = value.get<double>();
            return std::string();
          },
          [=](const Config& config) { return Json(field(config)); }};
}

struct Shape {
  std::int64_t n_layer;
  std::int64_t n_head;
  std::int64_t n_embd;
};

/// The tutorial's.
const std::map<std::string, Shape>& model_types() {
  static const std::map<std::string, Shape> types = {
      {"openai-gpt", {12, 12, 768}},  {"gpt2", {12, 12, 768}},     {"gpt2-medium", {24, 16, 1024}},
      {"gpt2-large", {36, 20, 1280}}, {"gpt2-xl", {48, 25, 1600}}, {"gopher-44m", {8, 16, 512}},
      {"gpt-mini", {6, 6, 192}},      {"gpt-micro", {4, 4, 128}},  {"gpt-nano", {3, 3, 48}}};
  return types;
}

std::string set_model_type(Config& config, const Json& value) {
  const auto type = model_types().find(value.is_string() ? value.get<std::string>() : "");
  if (type == model_types().end()) {
    std::string names;
    for (const auto& [name, shape] : model_types()) names += (names.empty() ? "" : ", ") + name;
    return "must be one of " + names;
  }
  config.gpt.n_layer = type->second.n_layer;
  config.gpt.n_head = type->second.n_head;
  config.gpt.n_embd = type->second.n_embd;
  return "";
}

std::string set_path(Config& config, const Json& value) {
  if (value.is_string()) {
    config.data.path = {value.get<std::string>()};
    return "";
  }
  const auto is_text = [](const Json& each) { return each.is_string(); };
  if (!value.is_array() || value.empty() || !std::all_of(value.begin(), value.end(), is_text)) {
    return "must be a file or folder, or a list of them";
  }
  config.data.path = value.get<std::vector<std::string>>();
  return "";
}

std::string set_snapshot_path(Config& config, const Json& value) {
  if (!value.is_string() || value.get<std::string>().empty()) return "must be a folder";
  config.trainer.snapshot_path = value.get<std::string>();
  return "";
}

std::string set_precision(Config& config, const Json& value) {
  for (const auto precision : {Precision::kFloat32, Precision::kBFloat16, Precision::kFloat16}) {
    if (value == name_of(precision)) {
      config.trainer.precision = precision;
      return "";
    }
  }
  return "must be fp32, bf16 or fp16";
}

// The tutorial's word for float16.
std::string set_use_amp(Config& config, const Json& value) {
  if (!value.is_boolean()) return "must be true or false";
  config.trainer.precision = value ? Precision::kFloat16 : Precision::kFloat32;
  return "";
}

#define MINGPT_FIELD(field)   \
  [](auto& config) -> auto& { \
    return config.field;      \
  }

std::vector<ConfigKey> make_keys() {
  constexpr std::uint32_t kMostSeed = std::numeric_limits<std::uint32_t>::max();
  return {
      {"gpt_config.model_type", set_model_type, nullptr},
      integer("gpt_config.n_layer", MINGPT_FIELD(gpt.n_layer), 1),
      integer("gpt_config.n_head", MINGPT_FIELD(gpt.n_head), 1),
      integer("gpt_config.n_embd", MINGPT_FIELD(gpt.n_embd), 1),
      number("gpt_config.embd_pdrop", MINGPT_FIELD(gpt.embd_pdrop), 0, 1),
      number("gpt_config.resid_pdrop", MINGPT_FIELD(gpt.resid_pdrop), 0, 1),
      number("gpt_config.attn_pdrop", MINGPT_FIELD(gpt.attn_pdrop), 0, 1),
      {"data_config.path", set_path, [](const Config& config) { return Json(config.data.path); }},
      integer("data_config.block_size", MINGPT_FIELD(data.block_size), 1),
      number("data_config.train_split", MINGPT_FIELD(data.train_split), 0, 1),
      number("data_config.truncate", MINGPT_FIELD(data.truncate), 0, 1),
      integer("trainer_config.max_epochs", MINGPT_FIELD(trainer.max_epochs), 1),
      integer("trainer_config.max_steps", MINGPT_FIELD(trainer.max_steps), 0),
      integer("trainer_config.batch_size", MINGPT_FIELD(trainer.batch_size), 1),
      number("trainer_config.grad_norm_clip", MINGPT_FIELD(trainer.grad_norm_clip), 0),
      {"trainer_config.snapshot_path", set_snapshot_path,
       [](const Config& config) { return Json(config.trainer.snapshot_path); }},
      integer("trainer_config.save_every", MINGPT_FIELD(trainer.save_every), 1),
      integer("trainer_config.save_every_steps", MINGPT_FIELD(trainer.save_every_steps), 0),
      integer("trainer_config.log_every", MINGPT_FIELD(trainer.log_every), 1),
      {"trainer_config.precision", set_precision,
       [](const Config& config) { return Json(name_of(config.trainer.precision)); }},
      {"trainer_config.use_amp", set_use_amp, nullptr},
      integer("trainer_config.seed", MINGPT_FIELD(trainer.seed), 0, kMostSeed),
      number("optimizer_config.learning_rate", MINGPT_FIELD(optimizer.learning_rate), 0),
      number("optimizer_config.weight_decay", MINGPT_FIELD(optimizer.weight_decay), 0),
      decay("optimizer_config.beta1", MINGPT_FIELD(optimizer.beta1)),
      decay("optimizer_config.beta2", MINGPT_FIELD(optimizer.beta2)),
      integer("optimizer_config.warmup_steps", MINGPT_FIELD(optimizer.warmup_steps), 0),
      number("optimizer_config.final_learning_rate_factor",
             MINGPT_FIELD(optimizer.final_learning_rate_factor), 0, 1),
  };
}

#undef MINGPT_FIELD

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = make_keys();
  return keys;
}

}  // namespace mingpt
