#include <gtest/gtest.h>

#include "launcher/agents/agent_messages.h"

namespace lockstep {
namespace {

RendezvousNode node_named(const std::string& id) {
  return {.id = id, .name = id + " (pid 7)", .host = "host of " + id, .worker_count = 3};
}

RendezvousState some_state() {
  RendezvousState state{
      .phase = RendezvousState::Phase::kRunning,
      .generation = 1ULL << 60,
      .gathering = 9,
      .nodes = {node_named("a"), node_named("b")},
      .waiting = {node_named("c")},
      .expected = {node_named("d"), node_named("e")},
      .last_members = {"a", "d"},
      .succeeded = {"b"},
      .restarts = 2,
      .restarted_after = 5,
      .fault = {.text = "rank 1: killed", .place = "step 7", .status = 137, .silent_since = 4},
      .same_faults = 1,
      .cause = "machine \"x\" was lost",
      .end = GenerationEnd::kMachineGone,
      .faulty = "b"};
  state.nodes[0].rank = 1;
  return state;
}

TEST(StateText, IsReadBack) {
  EXPECT_EQ(decode_state(encode(some_state())), some_state());
  EXPECT_EQ(decode_state(encode(RendezvousState{})), RendezvousState{});
}

TEST(StateText, AnythingElseIsNone) {
  const std::string text = encode(some_state());
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_EQ(decode_state(text.substr(0, size)), std::nullopt) << size;
  }
  for (const auto& [wanted, other] : {std::pair{R"("phase":1)", R"("phase":4)"},
                                      {R"("restarts":2)", R"("restarts":-2)"},
                                      {R"("worker_count":3)", R"("worker_count":0)"},
                                      {R"("end":3)", R"("end":99)"},
                                      {R"(["a","d"])", R"(["a",1])"},
                                      {R"(["b"])", R"({"b":1})"}}) {
    std::string changed = text;
    changed.replace(changed.find(wanted), std::string(wanted).size(), other);
    EXPECT_EQ(decode_state(changed), std::nullopt) << other;
  }
}

}  // namespace
}  // namespace lockstep
