#include "lockstep/record/internal/replay_request.h"

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"

namespace lockstep::inline internal {

using nlohmann::json;

std::string to_text(const ReplayRequest& request) {
  return json{{"step", request.step},
              {"directory", request.directory},
              {"folder", request.folder},
              {"logical_shards", request.logical_shards}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<ReplayRequest> replay_request() {
  const auto text = env::text(env::kReplay);
  if (!text) return std::nullopt;
  try {
    const json value = json::parse(*text);
    return ReplayRequest{.step = value.at("step"),
                         .directory = value.at("directory"),
                         .folder = value.at("folder"),
                         .logical_shards = value.at("logical_shards")};
  } catch (const json::exception&) {
    throw UsageError(concat("environment variable ", env::kReplay.name, "='", *text,
                            "' is not what lockstep replay sets; unset it"));
  }
}

}  // namespace lockstep::inline internal
