#include "tools/doctor/machine_facts.h"

#include <nlohmann/json.hpp>

// nlohmann_json has std::optional only from 3.12.
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

// A missing field keeps its default: the other machine may have another version, which the findings
// name.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(InterfaceFacts, name, address, is_loopback, is_up,
                                                has_carrier, mtu)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ProgramFacts, name, path, trouble, fingerprint,
                                                missing_libraries, libtorch, libtorch_version)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(PythonFacts, asked, path, trouble, torch_version)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(
    MachineFacts, host_name, name_addresses, name_trouble, interfaces, gloo_interface, own_address,
    own_address_trouble, meeting_addresses, meeting_trouble, shm_bytes, shm_free_bytes,
    temporary_directory, temporary_trouble, temporary_free_bytes, open_files, processes,
    locked_memory_bytes, group_processes_left, processors, processor_quota, memory_bytes,
    memory_available_bytes, kernel, lockstep_version, lockstep_fingerprint, gpus, gpu_driver,
    has_infiniband, program, python)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ReachFacts, target, address, trouble, round_trip_us,
                                                clock_ahead_us)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ReachReport, listen_trouble, calls)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ReachTarget, machine, addresses, port)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ReachPlan, own, port, token, targets)

template <class Value>
std::string encode(const Value& value) {
  using nlohmann::json;
  return json(value).dump(-1, ' ', false, json::error_handler_t::replace);
}

template <class Value>
std::optional<Value> decode(std::string_view text) {
  using nlohmann::json;
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    if (object.is_object()) return object.get<Value>();
  } catch (const json::exception&) {
    // A field has another type.
  }
  return std::nullopt;
}

template std::string encode(const MachineFacts&);
template std::string encode(const ReachReport&);
template std::string encode(const ReachPlan&);
template std::optional<MachineFacts> decode(std::string_view);
template std::optional<ReachReport> decode(std::string_view);
template std::optional<ReachPlan> decode(std::string_view);

}  // namespace lockstep::inline internal
