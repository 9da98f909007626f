#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::inline internal {

/// Random bytes that one side of a connection adds to it, so that no connection is like another.
using Nonce = std::array<unsigned char, 32>;
using SessionKey = std::array<unsigned char, 32>;

Nonce random_nonce();
/// In lower-case hexadecimal digits, and back; nothing for a text that is none.
std::string hex_of(const Nonce& nonce);
std::optional<Nonce> nonce_of(std::string_view hex);

/// What the agents of one job know and nobody else: each shows the other that it does without
/// telling it, and both draw the keys of their connection from it.
/// Source: challenge and response with keyed BLAKE2b (libsodium's crypto_generichash).
class JobSecret {
 public:
  /// `job`: its id. `text` may be empty: then it is no secret, and keeps jobs apart only.
  JobSecret(const std::string& job, const std::string& text);

  /// What the agent that connects shows.
  std::string client_proof(const Nonce& client) const;
  /// What the other answers.
  std::string server_proof(const Nonce& client, const Nonce& server) const;
  /// That an agent of the job has written a text.
  std::string proof_of(std::string_view text) const;
  /// Compares in a time that does not tell how much of it is right.
  static bool same_proof(std::string_view shown, std::string_view wanted);

  SessionKey key_to_server(const Nonce& client, const Nonce& server) const;
  SessionKey key_to_client(const Nonce& client, const Nonce& server) const;

 private:
  SessionKey hash(std::string_view purpose, std::string_view first, std::string_view second) const;

  SessionKey key_{};
};

/// Encrypts one direction of a connection, message by message: a message that was changed, left
/// out, repeated or put elsewhere does not open.
/// Source: XChaCha20-Poly1305 (libsodium), the message's number as its nonce.
class SealedMessages {
 public:
  explicit SealedMessages(const SessionKey& key) : key_(key) {}

  std::string seal(std::string_view text);
  std::optional<std::string> open(std::string_view sealed);

 private:
  SessionKey key_;
  std::uint64_t number_ = 0;
};

}  // namespace lockstep::inline internal
