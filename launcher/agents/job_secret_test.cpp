#include "launcher/agents/job_secret.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(JobSecret, NoncesAreReadBack) {
  const Nonce nonce = random_nonce();
  EXPECT_EQ(nonce_of(hex_of(nonce)), nonce);
  EXPECT_NE(random_nonce(), nonce);
  for (const char* bad : {"", "00", "zz"}) EXPECT_EQ(nonce_of(bad), std::nullopt);
  EXPECT_EQ(nonce_of(hex_of(nonce) + "00"), std::nullopt);
  EXPECT_EQ(nonce_of(hex_of(nonce).substr(1)), std::nullopt);
}

TEST(JobSecret, ProofsAreOfTheSecretTheJobAndTheNonces) {
  const JobSecret secret("job", "secret");
  const Nonce client = random_nonce();
  const Nonce server = random_nonce();
  EXPECT_EQ(secret.client_proof(client), JobSecret("job", "secret").client_proof(client));
  EXPECT_NE(secret.client_proof(client), JobSecret("job", "other").client_proof(client));
  EXPECT_NE(secret.client_proof(client), JobSecret("other", "secret").client_proof(client));
  EXPECT_NE(secret.client_proof(client), secret.client_proof(server));
  EXPECT_NE(secret.server_proof(client, server), secret.server_proof(server, client));
  EXPECT_NE(secret.key_to_server(client, server), secret.key_to_client(client, server));
  EXPECT_TRUE(JobSecret::same_proof("abc", "abc"));
  EXPECT_FALSE(JobSecret::same_proof("abc", "abd"));
  EXPECT_FALSE(JobSecret::same_proof("", "abd"));
}

struct SealedMessagesTest : testing::Test {
  SessionKey key = JobSecret("job", "secret").key_to_server(random_nonce(), random_nonce());
  SealedMessages sender{key};
  SealedMessages receiver{key};
};

TEST_F(SealedMessagesTest, OpenInOrder) {
  for (const std::string text : {"", "a", "some more"})
    EXPECT_EQ(receiver.open(sender.seal(text)), text);
}

TEST_F(SealedMessagesTest, ThatWereTamperedWithDoNotOpen) {
  const std::string sealed = sender.seal("text");
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    std::string changed = sealed;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_EQ(receiver.open(changed), std::nullopt) << i;
  }
  EXPECT_EQ(receiver.open(sealed.substr(1)), std::nullopt);
  EXPECT_EQ(receiver.open(""), std::nullopt);
  EXPECT_EQ(receiver.open(sealed), "text");
  EXPECT_EQ(receiver.open(sealed), std::nullopt) << "said again";
  sender.seal("left out");
  EXPECT_EQ(receiver.open(sender.seal("next")), std::nullopt);
}

TEST_F(SealedMessagesTest, NeedTheKey) {
  SealedMessages stranger(JobSecret("job", "guess").key_to_server(random_nonce(), random_nonce()));
  EXPECT_EQ(receiver.open(stranger.seal("text")), std::nullopt);
}

}  // namespace
}  // namespace lockstep
