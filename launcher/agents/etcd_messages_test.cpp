#include "launcher/agents/etcd_messages.h"

#include <gtest/gtest.h>

namespace lockstep::inline internal::etcd {
namespace {

const Keys kKeys = keys_of("/lockstep", "job");  // in base64 L2xvY2tzdGVwL2pvYi9sZWFkZXI=, …3RhdGU=

TEST(EtcdMessages, AreThoseOfTheGateway) {
  EXPECT_EQ(kKeys.leader, "/lockstep/job/leader");
  EXPECT_EQ(kKeys.state, "/lockstep/job/state");
  EXPECT_STREQ(grant_lease(std::chrono::seconds(5)).path, "/v3/lease/grant");
  EXPECT_EQ(grant_lease(std::chrono::seconds(5)).body, R"({"TTL":5})");
  EXPECT_EQ(renew_lease("7587899081062092037").body, R"({"ID":"7587899081062092037"})");
  EXPECT_EQ(read_leader(kKeys).body,
            R"({"success":[{"request_range":{"key":"L2xvY2tzdGVwL2pvYi9sZWFkZXI="}}]})");
  EXPECT_EQ(
      save(kKeys, {.created = "12", .written = "15"}, "new", "9").body,
      R"({"compare":[{"create_revision":"12","key":"L2xvY2tzdGVwL2pvYi9sZWFkZXI=",)"
      R"("target":"CREATE"},{"key":"L2xvY2tzdGVwL2pvYi9zdGF0ZQ==","mod_revision":"15",)"
      R"("target":"MOD"}],"failure":[{"request_range":{"key":"L2xvY2tzdGVwL2pvYi9sZWFkZXI="}},)"
      R"({"request_range":{"key":"L2xvY2tzdGVwL2pvYi9zdGF0ZQ=="}}],)"
      R"("success":[{"request_put":{"key":"L2xvY2tzdGVwL2pvYi9zdGF0ZQ==",)"
      R"("lease":"9","value":"bmV3"}}]})");
}

// As etcd 3.4 answers.
TEST(EtcdMessages, ACampaignIsWonOnce) {
  const auto won = campaign_in(
      R"({"header":{"revision":"2"},"succeeded":true,"responses":[{"response_put":{}},)"
      R"({"response_range":{"kvs":[{"key":"bGVhZA==","create_revision":"2","value":"YQ=="}]}},)"
      R"({"response_range":{"kvs":[{"key":"bGVhZA==","create_revision":"1","mod_revision":"3","value":"Yg=="}]}}]})");
  ASSERT_TRUE(won);
  EXPECT_TRUE(won->is_won);
  EXPECT_EQ(won->leader.value().text, "a");
  EXPECT_EQ(won->leader.value().created, "2");
  EXPECT_EQ(won->state.value().text, "b");
  EXPECT_EQ(won->state.value().written, "3");
  const auto lost = campaign_in(
      R"({"responses":[{"response_range":{"kvs":[{"create_revision":"2","value":"YQ=="}]}}]})");
  ASSERT_TRUE(lost);
  EXPECT_FALSE(lost->is_won);
  EXPECT_EQ(lost->leader.value().text, "a");
  const auto nobody = campaign_in(R"({"succeeded":true,"responses":[{"response_range":{}}]})");
  ASSERT_TRUE(nobody);
  EXPECT_FALSE(nobody->leader);
}

TEST(EtcdMessages, AWriteSaysWhatIsThere) {
  const auto done =
      saved_in(R"({"header":{"revision":"7"},"succeeded":true,"responses":[{"response_put":{}}]})");
  ASSERT_TRUE(done);
  EXPECT_TRUE(done->is_done);
  EXPECT_EQ(done->written, "7");
  const auto refused = saved_in(
      R"({"header":{"revision":"9"},"responses":[)"
      R"({"response_range":{"kvs":[{"create_revision":"2","mod_revision":"2","value":"YQ=="}]}},)"
      R"({"response_range":{"kvs":[{"create_revision":"1","mod_revision":"8","value":"Yg=="}]}}]})");
  ASSERT_TRUE(refused);
  EXPECT_FALSE(refused->is_done);
  EXPECT_EQ(refused->created, "2");
  EXPECT_EQ(refused->written, "8");
  const auto nothing = saved_in(R"({"responses":[{"response_range":{}},{"response_range":{}}]})");
  ASSERT_TRUE(nothing);
  EXPECT_EQ(nothing->created, "");
  EXPECT_EQ(nothing->written, "0");
}

TEST(EtcdMessages, ALeaseThatHasEndedIsNone) {
  EXPECT_EQ(lease_in(R"({"header":{},"ID":"7","TTL":"5"})"), "7");
  EXPECT_EQ(lease_in(R"({"result":{"ID":"7","TTL":"60"}})"), "7");
  EXPECT_EQ(lease_in(R"({"result":{"ID":"7"}})"), std::nullopt);
}

TEST(EtcdMessages, OthersAreNone) {
  for (const char* text : {"", "{", "[]", "7", "{}", R"({"responses":7})", R"({"responses":[]})",
                           R"({"responses":[7,7,7]})", R"({"ID":7,"TTL":5})", R"({"result":[]})",
                           R"({"responses":[{},{"response_range":{"kvs":[{"value":"%"}]}},{}]})"}) {
    EXPECT_EQ(lease_in(text), std::nullopt) << text;
    EXPECT_FALSE(campaign_in(text).value_or(Campaign{}).leader) << text;
    EXPECT_FALSE(saved_in(text).value_or(Saved{}).is_done) << text;
  }
  EXPECT_EQ(refusal_in(R"({"error":"lease not found","code":5})"), "lease not found");
  EXPECT_EQ(refusal_in("{}"), "");
}

}  // namespace
}  // namespace lockstep::inline internal::etcd
