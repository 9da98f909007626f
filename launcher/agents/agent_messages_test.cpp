#include "launcher/agents/agent_messages.h"

#include <random>

#include <gtest/gtest.h>

#include "launcher/agents/json_members.h"
#include "lockstep/base/internal/memory_limit_testing.h"

namespace lockstep {
namespace {

AgentMessage some_agent_message() {
  return {.number = 7,
          .report = {.node = {.id = "a-1",
                              .name = "host \"a\"\n\xff",
                              .host = "a",
                              .worker_count = 3,
                              .role = "trainer",
                              .rank = 2,
                              .store_host = "::1",
                              .store_port = 65'535,
                              .agreement = "lockstep 1; --nnodes=2",
                              .program = "0123"},
                     .status = AgentReport::Status::kFailed,
                     .generation = 1ULL << 60,
                     .fault = {.text = "rank 1: killed",
                               .place = "step 7",
                               .status = 137,
                               .is_hang = true,
                               .silent_since = 3},
                     .farewell = "left"}};
}

ServiceMessage some_service_message() {
  return {.number = 9,
          .view = {.phase = RendezvousState::Phase::kRunning,
                   .generation = 3,
                   .is_there = true,
                   .placement = NodePlacement{.node_rank = 1,
                                              .node_count = 2,
                                              .first_rank = 3,
                                              .world_size = 7,
                                              .first_role_rank = 1,
                                              .role_world_size = 4,
                                              .store_host = "10.0.0.1",
                                              .store_port = 4567},
                   .restarts = 2,
                   .cause = "machine b was lost",
                   .end = GenerationEnd::kMachineGone,
                   .is_own_fault = true,
                   .status = 137,
                   .is_hang = true},
          .missing = "1 of 2",
          .refusal = "no"};
}

TEST(AgentMessages, AreReadBack) {
  AgentMessage message = some_agent_message();
  message.report.stop = {.by = "root", .at_once = true};
  const auto decoded = decode_agent_message(encode(message));
  ASSERT_TRUE(decoded);
  message.report.node.name = "host \"a\"\n\xef\xbf\xbd";  // What is no UTF-8 is replaced.
  EXPECT_EQ(*decoded, message);
  EXPECT_EQ(decode_agent_message(encode(AgentMessage{})), AgentMessage{});
}

TEST(ServiceMessages, AreReadBack) {
  EXPECT_EQ(decode_service_message(encode(some_service_message())), some_service_message());
  EXPECT_EQ(decode_service_message(encode(ServiceMessage{})), ServiceMessage{});
}

TEST(AgentMessages, TextsAreCut) {
  AgentMessage message = some_agent_message();
  message.report.fault.text = std::string(1 << 20, 'x');
  message.report.node.name = std::string(1 << 20, '\x01');
  EXPECT_LE(encode(message).size(), 2 * kLongestAgentMessageBytes);
  EXPECT_TRUE(decode_agent_message(encode(message)));
}

TEST(AgentMessages, AnythingElseIsNone) {
  for (const char* text :
       {"", "{}", "[]", "null", "7", "{\"number\":", "{\"number\":-1}", "\x80\x02]q"}) {
    EXPECT_EQ(decode_agent_message(text), std::nullopt) << text;
    EXPECT_EQ(decode_service_message(text), std::nullopt) << text;
  }
}

// Whatever is read, the result is a message or nothing; the sanitizers watch.
// Also of what etcd holds, which no limit of messages bounds.
TEST(AgentMessages, TakeMemoryInProportionToTheirText) {
  const auto repeated = [](const std::string& text) {
    std::string result;
    while (result.size() < 200'000) result += text;
    return result;
  };
  for (const std::string& text :
       {repeated("["), repeated("{\"\":"), "[" + repeated("0,") + "0]",
        "[" + repeated("[],") + "0]", "{\"nodes\":[" + repeated("{},") + "0]}",
        "{" + repeated("\"a\":{},") + "\"b\":0}"}) {
    const auto bound = kAnyJsonBytes + kJsonBytesAByte * text.size();
    const auto read = [&] {
      decode_agent_message(text);
      decode_service_message(text);
      decode_state(text);
    };
    EXPECT_TRUE(fits_in(bound, read)) << text.substr(0, 20);
  }
}

TEST(AgentMessages, SurviveMutations) {
  std::mt19937 random(1);
  const std::string good[] = {encode(some_agent_message()), encode(some_service_message())};
  for (int i = 0; i < 20'000; ++i) {
    std::string text = good[i % 2];
    for (int changes = 1 + static_cast<int>(random() % 4); changes > 0; --changes) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, random() % 8);
          break;
        case 2:
          text.insert(at, text.substr(random() % text.size(), random() % 16));
          break;
        default:
          text.resize(at);
      }
      if (text.empty()) text = "{";
    }
    if (const auto message = decode_agent_message(text)) {
      EXPECT_GE(message->report.node.worker_count, 1);
      EXPECT_LE(static_cast<int>(message->report.status), 5);
    }
    if (const auto message = decode_service_message(text)) {
      EXPECT_LE(static_cast<int>(message->view.phase), 3);
    }
  }
}

}  // namespace
}  // namespace lockstep
