#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::inline internal {

/// Random bytes that one side of a connection contributes, so each connection has other keys.
using Nonce = std::array<unsigned char, 32>;
using SessionKey = std::array<unsigned char, 32>;

Nonce random_nonce();
/// To lower-case hexadecimal digits.
std::string hex_of(const Nonce& nonce);
/// From hexadecimal digits; nothing for other texts.
std::optional<Nonce> nonce_of(std::string_view hex);

/// The shared secret of a job's agents: each proves to the other that it knows the secret without
/// sending it, and both derive the keys of their connection from it.
/// Algorithm: challenge and response with keyed BLAKE2b (libsodium's crypto_generichash).
class JobSecret {
 public:
  /// `job`: its id. `text` may be empty: then it is no secret and only separates jobs.
  JobSecret(const std::string& job, const std::string& text);

  /// Proof of the agent that connects.
  std::string client_proof(const Nonce& client) const;
  /// Proof of the agent that accepts.
  std::string server_proof(const Nonce& client, const Nonce& server) const;
  /// Proof that an agent of the job wrote a text.
  std::string proof_of(std::string_view text) const;
  /// Compares in constant time.
  static bool same_proof(std::string_view shown, std::string_view wanted);

  /// Keys of the two directions of a connection.
  SessionKey key_to_server(const Nonce& client, const Nonce& server) const;
  SessionKey key_to_client(const Nonce& client, const Nonce& server) const;

 private:
  SessionKey hash(std::string_view purpose, std::string_view first, std::string_view second) const;

  SessionKey key_{};
};

/// Encrypts one direction of a connection, message by message: a changed, dropped, repeated or
/// reordered message does not decrypt.
/// Algorithm: XChaCha20-Poly1305 (libsodium), with the message's number as nonce.
class SealedMessages {
 public:
  explicit SealedMessages(const SessionKey& key) : key_(key) {}

  /// Encrypts the next message.
  std::string seal(std::string_view text);
  /// Decrypts the next message; nothing if it does not decrypt.
  std::optional<std::string> open(std::string_view sealed);

 private:
  SessionKey key_;
  std::uint64_t number_ = 0;
};

}  // namespace lockstep::inline internal
