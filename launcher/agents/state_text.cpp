#include "launcher/agents/state_text.h"

#include "launcher/agents/json_members.h"

namespace lockstep::inline internal {
namespace {

using nlohmann::json;
using Phase = RendezvousState::Phase;

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
                  {"fault", to_json(state.fault)},
                  {"same_faults", state.same_faults},
                  {"cause", cut(state.cause)}});
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
  state.fault = members.fault("fault");
  state.same_faults = members.integer("same_faults", 0, kMostInt);
  state.cause = members.text("cause");
  if (!members.good() || !last_members || !succeeded) return std::nullopt;
  state.last_members = *last_members;
  state.succeeded = {succeeded->begin(), succeeded->end()};
  return state;
}

}  // namespace lockstep::inline internal
