#include "lockstep/agent/agent_messages.h"

#include <limits>

#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

using nlohmann::json;
using Status = AgentReport::Status;
using Phase = RendezvousState::Phase;

constexpr std::size_t kLongestTextBytes = 2'000;
constexpr int kMostWorkers = 1 << 20;

std::string cut(const std::string& text) {
  return text.substr(0, kLongestTextBytes);
}

std::string text_of(const json& message) {
  // What programs print need not be UTF-8.
  return message.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Reads members of an object and notes whether all were what they had to be.
class Members {
 public:
  explicit Members(const json& object) : object_(object), good_(object.is_object()) {}

  bool good() const { return good_; }

  std::uint64_t count(const char* name) {
    const json* const value = find(name);
    if (value != nullptr && value->is_number_unsigned()) return value->get<std::uint64_t>();
    good_ = false;
    return 0;
  }
  int integer(const char* name, int least, int most) {
    const std::uint64_t value = count(name);
    if (value >= static_cast<std::uint64_t>(least) && value <= static_cast<std::uint64_t>(most)) {
      return static_cast<int>(value);
    }
    good_ = false;
    return least;
  }
  std::string text(const char* name) {
    const json* const value = find(name);
    if (value != nullptr && value->is_string() &&
        value->get_ref<const std::string&>().size() <= 3 * kLongestTextBytes) {
      return value->get<std::string>();
    }
    good_ = false;
    return "";
  }
  bool boolean(const char* name) {
    const json* const value = find(name);
    if (value != nullptr && value->is_boolean()) return value->get<bool>();
    good_ = false;
    return false;
  }
  bool has(const char* name) { return find(name) != nullptr; }
  const json& object(const char* name) {
    static const json kEmpty = json::object();
    const json* const value = find(name);
    if (value != nullptr && value->is_object()) return *value;
    good_ = false;
    return kEmpty;
  }

 private:
  const json* find(const char* name) const {
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }

  const json& object_;
  bool good_;
};

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

constexpr int kMostInt = std::numeric_limits<int>::max();
constexpr int kMostPort = 65'535;

NodePlacement to_placement(Members& members) {
  NodePlacement placement;
  placement.node_rank = members.integer("node_rank", 0, kMostInt);
  placement.node_count = members.integer("node_count", 1, kMostInt);
  placement.first_rank = members.integer("first_rank", 0, kMostInt);
  placement.world_size = members.integer("world_size", 1, kMostInt);
  placement.first_role_rank = members.integer("first_role_rank", 0, kMostInt);
  placement.role_world_size = members.integer("role_world_size", 1, kMostInt);
  placement.store_host = members.text("store_host");
  placement.store_port = static_cast<std::uint16_t>(members.integer("store_port", 0, kMostPort));
  return placement;
}

}  // namespace

std::string encode(const AgentMessage& message) {
  const AgentReport& report = message.report;
  json node = {{"id", cut(report.node.id)},           {"name", cut(report.node.name)},
               {"host", cut(report.node.host)},       {"worker_count", report.node.worker_count},
               {"role", cut(report.node.role)},       {"store_host", cut(report.node.store_host)},
               {"store_port", report.node.store_port}};
  if (report.node.rank) node["rank"] = *report.node.rank;
  return text_of({{"number", message.number},
                  {"node", node},
                  {"status", static_cast<int>(report.status)},
                  {"generation", report.generation},
                  {"fault",
                   {{"text", cut(report.fault.text)},
                    {"place", cut(report.fault.place)},
                    {"status", report.fault.status}}},
                  {"farewell", cut(report.farewell)}});
}

std::string encode(const ServiceMessage& message) {
  const AgentView& view = message.view;
  json result = {{"number", message.number},       {"phase", static_cast<int>(view.phase)},
                 {"generation", view.generation},  {"is_there", view.is_there},
                 {"restarts", view.restarts},      {"cause", cut(view.cause)},
                 {"status", view.status},          {"missing", cut(message.missing)},
                 {"refusal", cut(message.refusal)}};
  if (view.placement) result["placement"] = to_json(*view.placement);
  return text_of(result);
}

std::optional<AgentMessage> decode_agent_message(std::string_view text) {
  const json object = json::parse(text, nullptr, false);
  Members members(object);
  AgentMessage message;
  AgentReport& report = message.report;
  message.number = members.count("number");
  Members node(members.object("node"));
  report.node = {
      .id = node.text("id"),
      .name = node.text("name"),
      .host = node.text("host"),
      .worker_count = node.integer("worker_count", 1, kMostWorkers),
      .role = node.text("role"),
      .store_host = node.text("store_host"),
      .store_port = static_cast<std::uint16_t>(node.integer("store_port", 0, kMostPort))};
  if (node.has("rank")) report.node.rank = node.integer("rank", 0, kMostInt);
  report.status =
      static_cast<Status>(members.integer("status", 0, static_cast<int>(Status::kLeaving)));
  report.generation = members.count("generation");
  Members fault(members.object("fault"));
  report.fault = {.text = fault.text("text"),
                  .place = fault.text("place"),
                  .status = fault.integer("status", 0, 255)};
  report.farewell = members.text("farewell");
  if (!members.good() || !node.good() || !fault.good()) return std::nullopt;
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

}  // namespace lockstep
