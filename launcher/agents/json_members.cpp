#include "launcher/agents/json_members.h"

#include "launcher/job/launch_options.h"

namespace lockstep::inline internal {
namespace {

using nlohmann::json;

constexpr std::size_t kLongestTextBytes = 2'000;
constexpr int kMostPort = 65'535;

}  // namespace

const json* Members::find(const char* name) const {
  if (!object_.is_object()) return nullptr;
  const auto found = object_.find(name);
  return found == object_.end() ? nullptr : &*found;
}

std::uint64_t Members::count(const char* name) {
  const json* const value = find(name);
  if (value != nullptr && value->is_number_unsigned()) return value->get<std::uint64_t>();
  good_ = false;
  return 0;
}

int Members::integer(const char* name, int least, int most) {
  const std::uint64_t value = count(name);
  if (value >= static_cast<std::uint64_t>(least) && value <= static_cast<std::uint64_t>(most)) {
    return static_cast<int>(value);
  }
  good_ = false;
  return least;
}

std::uint16_t Members::port(const char* name) {
  return static_cast<std::uint16_t>(integer(name, 0, kMostPort));
}

std::string Members::text(const char* name) {
  const json* const value = find(name);
  // Characters that were no UTF-8 have become longer.
  if (value != nullptr && value->is_string() &&
      value->get_ref<const std::string&>().size() <= 3 * kLongestTextBytes) {
    return value->get<std::string>();
  }
  good_ = false;
  return "";
}

bool Members::boolean(const char* name) {
  const json* const value = find(name);
  if (value != nullptr && value->is_boolean()) return value->get<bool>();
  good_ = false;
  return false;
}

const json& Members::object(const char* name) {
  static const json kEmpty = json::object();
  const json* const value = find(name);
  if (value != nullptr && value->is_object()) return *value;
  good_ = false;
  return kEmpty;
}

const json& Members::list(const char* name) {
  static const json kEmpty = json::array();
  const json* const value = find(name);
  if (value != nullptr && value->is_array()) return *value;
  good_ = false;
  return kEmpty;
}

RendezvousNode Members::node(const json& value) {
  Members members(value);
  RendezvousNode node{.id = members.text("id"),
                      .name = members.text("name"),
                      .host = members.text("host"),
                      .worker_count = members.integer("worker_count", 1, kMostWorkers),
                      .role = members.text("role"),
                      .store_host = members.text("store_host"),
                      .store_port = members.port("store_port")};
  // Of another version of Lockstep, which is what is to be told.
  if (members.has("agreement")) node.agreement = members.text("agreement");
  if (members.has("program")) node.program = members.text("program");
  if (members.has("rank")) node.rank = members.integer("rank", 0, kMostInt);
  good_ = good_ && members.good();
  return node;
}

WorkerFault Members::fault(const char* name) {
  Members members(object(name));
  WorkerFault fault{.text = members.text("text"),
                    .place = members.text("place"),
                    .status = members.integer("status", 0, 255),
                    .is_hang = members.boolean("is_hang"),
                    .is_final = members.boolean("is_final")};
  if (members.has("silent_since")) fault.silent_since = members.count("silent_since");
  good_ = good_ && members.good();
  return fault;
}

std::string cut(const std::string& text) {
  return text.substr(0, kLongestTextBytes);
}

json to_json(const RendezvousNode& node) {
  json result = {{"id", cut(node.id)},           {"name", cut(node.name)},
                 {"host", cut(node.host)},       {"worker_count", node.worker_count},
                 {"role", cut(node.role)},       {"store_host", cut(node.store_host)},
                 {"store_port", node.store_port}};
  if (!node.agreement.empty()) result["agreement"] = cut(node.agreement);
  if (!node.program.empty()) result["program"] = cut(node.program);
  if (node.rank) result["rank"] = *node.rank;
  return result;
}

json to_json(const WorkerFault& fault) {
  return {{"text", cut(fault.text)},
          {"place", cut(fault.place)},
          {"status", fault.status},
          {"is_hang", fault.is_hang},
          {"silent_since", fault.silent_since},
          {"is_final", fault.is_final}};
}

std::string text_of(const json& message) {
  return message.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace lockstep::inline internal
