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

json list_of(const std::vector<RendezvousNode>& nodes) {
  json list = json::array();
  for (const RendezvousNode& node : nodes) list.push_back(to_json(node));
  return list;
}

std::vector<RendezvousNode> nodes_in(Members& members, const char* name) {
  std::vector<RendezvousNode> nodes;
  for (const json& node : members.list(name)) {
    nodes.push_back(members.node(node));
    if (!members.good()) break;  // Nothing of it is taken, and "{}" is short for a node.
  }
  return nodes;
}

// A message of another version of Lockstep may have none: it is read, so that the versions are what
// the user is told.
GenerationEnd generation_end_in(Members& members) {
  if (!members.has("end")) return GenerationEnd::kNone;
  return static_cast<GenerationEnd>(
      members.integer("end", 0, static_cast<int>(GenerationEnd::kStoppedAtOnce)));
}

// Nothing where one is no text.
std::optional<std::vector<std::string>> texts_in(const json& list) {
  std::vector<std::string> texts;
  for (const json& text : list) {
    if (!text.is_string()) return std::nullopt;
    texts.push_back(text.get<std::string>());
  }
  return texts;
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
  json result = {{"number", message.number},
                 {"phase", static_cast<int>(view.phase)},
                 {"generation", view.generation},
                 {"is_there", view.is_there},
                 {"restarts", view.restarts},
                 {"cause", cut(view.cause)},
                 {"status", view.status},
                 {"missing", cut(message.missing)},
                 {"refusal", cut(message.refusal)},
                 {"is_hang", view.is_hang},
                 {"end", static_cast<int>(view.end)},
                 {"is_own_fault", view.is_own_fault}};
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
  view.end = generation_end_in(members);
  if (members.has("is_own_fault")) view.is_own_fault = members.boolean("is_own_fault");
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

std::string encode(const RendezvousState& state) {
  return text_of({{"phase", static_cast<int>(state.phase)},
                  {"generation", state.generation},
                  {"gathering", state.gathering},
                  {"nodes", list_of(state.nodes)},
                  {"waiting", list_of(state.waiting)},
                  {"expected", list_of(state.expected)},
                  {"last_members", state.last_members},
                  {"succeeded", state.succeeded},
                  {"restarts", state.restarts},
                  {"restarted_after", state.restarted_after},
                  {"fault", to_json(state.fault)},
                  {"same_faults", state.same_faults},
                  {"cause", cut(state.cause)},
                  {"end", static_cast<int>(state.end)},
                  {"faulty", cut(state.faulty)}});
}

std::optional<RendezvousState> decode_state(std::string_view text) {
  const json object = json::parse(text, nullptr, false);
  Members members(object);
  RendezvousState state;
  state.phase = static_cast<Phase>(members.integer("phase", 0, static_cast<int>(Phase::kFailed)));
  state.generation = members.count("generation");
  state.gathering = members.count("gathering");
  state.nodes = nodes_in(members, "nodes");
  state.waiting = nodes_in(members, "waiting");
  state.expected = nodes_in(members, "expected");
  const auto last_members = texts_in(members.list("last_members"));
  const auto succeeded = texts_in(members.list("succeeded"));
  state.restarts = members.integer("restarts", 0, kMostInt);
  if (members.has("restarted_after")) state.restarted_after = members.count("restarted_after");
  state.fault = members.fault("fault");
  state.same_faults = members.integer("same_faults", 0, kMostInt);
  state.cause = members.text("cause");
  state.end = generation_end_in(members);
  if (members.has("faulty")) state.faulty = members.text("faulty");
  if (!members.good() || !last_members || !succeeded) return std::nullopt;
  state.last_members = *last_members;
  state.succeeded = {succeeded->begin(), succeeded->end()};
  return state;
}

}  // namespace lockstep::inline internal
