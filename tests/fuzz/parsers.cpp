// What reads words of others: messages between agents, what etcd holds and answers, secrets shown
// in hexadecimal digits, sealed messages. Run by tests/fuzz/run.sh.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "launcher/agents/agent_messages.h"
#include "launcher/agents/etcd_messages.h"
#include "launcher/agents/job_secret.h"

namespace lockstep {
namespace {

void expect(bool holds) {
  if (!holds) std::abort();
}

// What is taken is of the schema, and so can be said again.
void read_messages(std::string_view text) {
  if (const auto message = decode_agent_message(text)) {
    expect(decode_agent_message(encode(*message)).has_value());
    expect(message->report.node.worker_count >= 1);
    expect(message->report.status <= AgentReport::Status::kLeaving);
  }
  if (const auto message = decode_service_message(text)) {
    expect(decode_service_message(encode(*message)).has_value());
    expect(message->view.phase <= RendezvousState::Phase::kFailed);
  }
}

void read_state(std::string_view text) {
  const auto state = decode_state(text);
  if (!state) return;
  expect(decode_state(encode(*state)).has_value());
  // Whatever it says, the next events find a state that they can go on from.
  const RendezvousRules rules{.min_nodes = 1, .max_nodes = 2, .max_restarts = 1};
  RendezvousState next = join(*state, rules, {.id = "fuzz", .name = "fuzz"});
  next = worker_failed(next, rules, "fuzz", next.generation, {.text = "failed"});
  next = remove(next, rules, "fuzz", "left");
  if (const auto timer = timer_of(next, rules)) next = timed_out(next, rules, *timer);
  placement_of(next, "fuzz");
}

void read_etcd(std::string_view text) {
  const auto campaign = etcd::campaign_in(text);
  expect(!campaign || !campaign->is_won || campaign->leader);
  etcd::lease_in(text);
  etcd::saved_in(text);
  etcd::refusal_in(text);
}

void read_secrets(std::string_view text) {
  if (const auto nonce = nonce_of(text)) expect(nonce_of(hex_of(*nonce)) == nonce);
  SealedMessages messages{SessionKey{}};
  messages.open(text);
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  lockstep::read_messages(text);
  lockstep::read_state(text);
  lockstep::read_etcd(text);
  lockstep::read_secrets(text);
  return 0;
}
