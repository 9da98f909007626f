#include "tools/doctor/machine_facts.h"

#include <nlohmann/json.hpp>

// nlohmann's own way for what may be absent comes with a later version than Debian's.
namespace nlohmann {
template <class Value>
struct adl_serializer<std::optional<Value>> {
  static void to_json(json& object, const std::optional<Value>& value) {
    object = value ? json(*value) : json(nullptr);
  }
  static void from_json(const json& object, std::optional<Value>& value) {
    value = object.is_null() ? std::nullopt : std::optional<Value>(object.get<Value>());
  }
};
}  // namespace nlohmann

namespace lockstep::inline internal {

// What is absent keeps its default: the other machine may have an earlier version, which is what is
// to be told.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(InterfaceFacts, name, address, is_loopback, is_up,
                                                has_carrier, mtu)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ProgramFacts, name, path, trouble, fingerprint,
                                                missing_libraries, libtorch, libtorch_version)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(PythonFacts, asked, path, trouble, torch_version)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(
    MachineFacts, host_name, name_addresses, name_trouble, interfaces, gloo_interface, own_address,
    own_address_trouble, meeting_addresses, meeting_trouble, port_trouble, clock_source, shm_bytes,
    shm_free_bytes, temporary_directory, temporary_trouble, temporary_free_bytes, open_files,
    processes, locked_memory_bytes, core_bytes, group_processes_left, processors, processor_quota,
    memory_bytes, memory_available_bytes, swap_bytes, overcommit_memory, kernel, lockstep_version,
    lockstep_fingerprint, gpus, gpu_driver, has_infiniband, program, python)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ReachFacts, target, address, trouble, round_trip_us,
                                                clock_ahead_us, from)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ReachReport, listen_trouble, calls)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ReachTarget, machine, addresses, port)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ReachPlan, own, port, token, targets)

namespace {

using nlohmann::json;

template <class Value>
std::string text_of_value(const Value& value) {
  return json(value).dump(-1, ' ', false, json::error_handler_t::replace);
}

template <class Value>
std::optional<Value> value_of(std::string_view text) {
  try {
    const json object = json::parse(text);
    if (object.is_object()) return object.get<Value>();
  } catch (const json::exception&) {
    // It is something else.
  }
  return std::nullopt;
}

}  // namespace

std::string encode(const MachineFacts& facts) {
  return text_of_value(facts);
}

std::string encode(const ReachReport& report) {
  return text_of_value(report);
}

std::string encode(const ReachPlan& plan) {
  return text_of_value(plan);
}

std::optional<MachineFacts> decode_machine_facts(std::string_view text) {
  return value_of<MachineFacts>(text);
}

std::optional<ReachReport> decode_reach_report(std::string_view text) {
  return value_of<ReachReport>(text);
}

std::optional<ReachPlan> decode_reach_plan(std::string_view text) {
  return value_of<ReachPlan>(text);
}

}  // namespace lockstep::inline internal
