#include "launcher/agents/agent_messages.h"

#include "launcher/agents/json_members.h"

namespace lockstep::inline internal {
namespace {

using nlohmann::json;
using Status = AgentReport::Status;
using Phase = RendezvousState::Phase;

json to_json(const NodePlacement& placement) {
  return {{"node_rank", placement.node_rank},
          {"node_count", placement.node_count},
          {"first_rank", placement.first_rank},
          {"world_size", placement.world_size},
          {"first_role_rank", placement.first_role_rank},
          {"role_world_size", placement.role_world_size},
          {"store_host", cut(placement.store_host)},
          {"store_port", placement.store_port}};
}

NodePlacement to_placement(Members& members) {
  NodePlacement placement;
  placement.node_rank = members.integer("node_rank", 0, kMostInt);
  placement.node_count = members.integer("node_count", 1, kMostInt);
  placement.first_rank = members.integer("first_rank", 0, kMostInt);
  placement.world_size = members.integer("world_size", 1, kMostInt);
  placement.first_role_rank = members.integer("first_role_rank", 0, kMostInt);
  placement.role_world_size = members.integer("role_world_size", 1, kMostInt);
  placement.store_host = members.text("store_host");
  placement.store_port = members.port("store_port");
  return placement;
}

}  // namespace

std::string encode(const AgentMessage& message) {
  const AgentReport& report = message.report;
  return text_of({{"number", message.number},
                  {"node", to_json(report.node)},
                  {"status", static_cast<int>(report.status)},
                  {"generation", report.generation},
                  {"fault", to_json(report.fault)},
                  {"farewell", cut(report.farewell)},
                  {"stop", {{"by", cut(report.stop.by)}, {"at_once", report.stop.at_once}}}});
}

std::string encode(const ServiceMessage& message) {
  const AgentView& view = message.view;
  json result = {{"number", message.number},        {"phase", static_cast<int>(view.phase)},
                 {"generation", view.generation},   {"is_there", view.is_there},
                 {"restarts", view.restarts},       {"cause", cut(view.cause)},
                 {"status", view.status},           {"missing", cut(message.missing)},
                 {"refusal", cut(message.refusal)}, {"is_hang", view.is_hang}};
  if (view.placement) result["placement"] = to_json(*view.placement);
  return text_of(result);
}

std::optional<AgentMessage> decode_agent_message(std::string_view text) {
  const json object = json::parse(text, nullptr, false);
  Members members(object);
  AgentMessage message;
  AgentReport& report = message.report;
  message.number = members.count("number");
  report.node = members.node(members.object("node"));
  report.status =
      static_cast<Status>(members.integer("status", 0, static_cast<int>(Status::kLeaving)));
  report.generation = members.count("generation");
  report.fault = members.fault("fault");
  report.farewell = members.text("farewell");
  Members stop(members.object("stop"));
  report.stop = {.by = stop.text("by"), .at_once = stop.boolean("at_once")};
  if (!members.good() || !stop.good()) return std::nullopt;
  return message;
}

std::optional<ServiceMessage> decode_service_message(std::string_view text) {
  const json object = json::parse(text, nullptr, false);
  Members members(object);
  ServiceMessage message;
  AgentView& view = message.view;
  message.number = members.count("number");
  view.phase = static_cast<Phase>(members.integer("phase", 0, static_cast<int>(Phase::kFailed)));
  view.generation = members.count("generation");
  view.is_there = members.boolean("is_there");
  view.restarts = members.integer("restarts", 0, kMostInt);
  view.cause = members.text("cause");
  view.status = members.integer("status", 0, 255);
  view.is_hang = members.boolean("is_hang");
  message.missing = members.text("missing");
  message.refusal = members.text("refusal");
  if (members.has("placement")) {
    Members placement(members.object("placement"));
    view.placement = to_placement(placement);
    if (!placement.good()) return std::nullopt;
  }
  if (!members.good()) return std::nullopt;
  return message;
}

}  // namespace lockstep::inline internal
