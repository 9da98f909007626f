#include "launcher/agents/etcd_messages.h"

#include <nlohmann/json.hpp>
#include <sodium.h>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal::etcd {
namespace {

using nlohmann::json;

constexpr const char* kTransaction = "/v3/kv/txn";
constexpr int kBase64 = sodium_base64_VARIANT_ORIGINAL;

std::string to_base64(std::string_view bytes) {
  std::string text(sodium_base64_encoded_len(bytes.size(), kBase64), '\0');
  ::sodium_bin2base64(text.data(), text.size(),
                      reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), kBase64);
  text.pop_back();  // the terminating 0
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  std::string bytes(text.size(), '\0');
  std::size_t size = 0;
  if (::sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(),
                          text.size(), nullptr, &size, nullptr, kBase64) != 0) {
    return std::nullopt;
  }
  bytes.resize(size);
  return bytes;
}

std::string text_at(const json& object, const char* name) {
  if (!object.is_object()) return "";
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

json at(const json& object, const char* name) {
  return object.is_object() ? object.value(name, json()) : json();
}

json put(const std::string& key, const std::string& value, const std::string& lease) {
  return {
      {"request_put", {{"key", to_base64(key)}, {"value", to_base64(value)}, {"lease", lease}}}};
}

json range(const std::string& key) {
  return {{"request_range", {{"key", to_base64(key)}}}};
}

// A key that does not exist was made, and written, at revision 0.
constexpr const char* kNever = "0";

json made_at(const std::string& key, const std::string& revision) {
  return {{"key", to_base64(key)}, {"target", "CREATE"}, {"create_revision", revision}};
}

json written_at(const std::string& key, const std::string& revision) {
  return {{"key", to_base64(key)}, {"target", "MOD"}, {"mod_revision", revision}};
}

std::optional<Value> value_in(const json& answer_to_range) {
  const json values = at(answer_to_range, "kvs");
  if (!values.is_array() || values.empty()) return std::nullopt;
  const auto text = from_base64(text_at(values[0], "value"));
  if (!text) return std::nullopt;
  return Value{.text = *text,
               .created = text_at(values[0], "create_revision"),
               .written = text_at(values[0], "mod_revision")};
}

}  // namespace

Keys keys_of(const std::string& prefix, const std::string& job) {
  return {concat(prefix, "/", job, "/leader"), concat(prefix, "/", job, "/state")};
}

Request grant_lease(std::chrono::seconds time_to_live) {
  return {"/v3/lease/grant", json{{"TTL", time_to_live.count()}}.dump()};
}

Request renew_lease(const std::string& lease) {
  return {"/v3/lease/keepalive", json{{"ID", lease}}.dump()};
}

Request end_lease(const std::string& lease) {
  return {"/v3/lease/revoke", json{{"ID", lease}}.dump()};
}

std::optional<std::string> lease_in(std::string_view answer) {
  const json object = json::parse(answer, nullptr, false);
  const json result = at(object, "result");  // of a renewal, which is a stream of one
  const json& lease = result.is_object() ? result : object;
  const std::string id = text_at(lease, "ID");
  if (id.empty() || text_at(lease, "TTL").empty()) return std::nullopt;
  return id;
}

Request read_leader(const Keys& keys) {
  return {kTransaction, json{{"success", {range(keys.leader)}}}.dump()};
}

Request campaign(const Keys& keys, const std::string& record, const std::string& lease) {
  return {
      kTransaction,
      json{{"compare", json::array({made_at(keys.leader, kNever)})},
           {"success", {put(keys.leader, record, lease), range(keys.leader), range(keys.state)}},
           {"failure", {range(keys.leader)}}}
          .dump()};
}

std::optional<Campaign> campaign_in(std::string_view answer) {
  const json object = json::parse(answer, nullptr, false);
  const json responses = at(object, "responses");
  if (!responses.is_array() || responses.empty()) return std::nullopt;
  constexpr std::size_t kOfCampaign = 3;
  if (responses.size() < kOfCampaign) {
    return Campaign{.leader = value_in(at(responses[0], "response_range"))};
  }
  Campaign result{.is_won = true, .leader = value_in(at(responses[1], "response_range"))};
  if (!result.leader) return std::nullopt;
  result.state = value_in(at(responses[2], "response_range"));
  return result;
}

Request save(const Keys& keys, const Writing& where, const std::string& state,
             const std::string& lease) {
  return {kTransaction, json{{"compare", json::array({made_at(keys.leader, where.created),
                                                      written_at(keys.state, where.written)})},
                             {"success", {put(keys.state, state, lease)}},
                             {"failure", {range(keys.leader), range(keys.state)}}}
                            .dump()};
}

std::optional<Saved> saved_in(std::string_view answer) {
  const json object = json::parse(answer, nullptr, false);
  const json responses = at(object, "responses");
  if (!responses.is_array() || responses.empty()) return std::nullopt;
  if (at(object, "succeeded") == true) {
    const std::string revision = text_at(at(object, "header"), "revision");
    if (revision.empty()) return std::nullopt;
    return Saved{.is_done = true, .written = revision};
  }
  if (responses.size() != 2) return std::nullopt;
  const auto leader = value_in(at(responses[0], "response_range"));
  const auto state = value_in(at(responses[1], "response_range"));
  return Saved{.created = leader ? leader->created : "",
               .written = state ? state->written : kNever};
}

std::string refusal_in(std::string_view answer) {
  return text_at(json::parse(answer, nullptr, false), "error");
}

}  // namespace lockstep::inline internal::etcd
