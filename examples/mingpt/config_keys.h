#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "examples/mingpt/config.h"

namespace mingpt {

/// One value of the configuration.
struct ConfigKey {
  std::string name;  ///< "trainer_config.max_epochs"
  /// Gives what is wrong with the value, "must be …", or nothing where it was taken.
  std::function<std::string(Config&, const nlohmann::json&)> set;
  /// Null where the key only stands for others.
  std::function<nlohmann::json(const Config&)> get;
};

/// Every key there is, in the order in which they are shown.
const std::vector<ConfigKey>& config_keys();

}  // namespace mingpt
