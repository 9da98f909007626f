#include "launcher/agents/job_secret.h"

#include <cstring>

#include <sodium.h>

#include "lockstep/base/internal/check.h"

namespace lockstep::inline internal {
namespace {

void start_sodium() {
  // It may be called more than once.
  LOCKSTEP_ASSERT(::sodium_init() >= 0);
}

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::string_view view_of_bytes(const Nonce& nonce) {
  return {reinterpret_cast<const char*>(nonce.data()), nonce.size()};
}

using SealNonce = std::array<unsigned char, crypto_aead_xchacha20poly1305_ietf_NPUBBYTES>;

// Never the same twice under one key, as each key has one direction of one connection.
SealNonce seal_nonce(std::uint64_t number) {
  SealNonce nonce{};
  std::memcpy(nonce.data(), &number, sizeof(number));
  return nonce;
}

}  // namespace

Nonce random_nonce() {
  start_sodium();
  Nonce nonce;
  ::randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

std::string hex_of(const Nonce& nonce) {
  std::string hex(2 * nonce.size() + 1, '\0');
  ::sodium_bin2hex(hex.data(), hex.size(), nonce.data(), nonce.size());
  hex.pop_back();
  return hex;
}

std::optional<Nonce> nonce_of(std::string_view hex) {
  Nonce nonce;
  std::size_t size = 0;
  const int status =
      ::sodium_hex2bin(nonce.data(), nonce.size(), hex.data(), hex.size(), nullptr, &size, nullptr);
  if (status != 0 || size != nonce.size() || hex.size() != 2 * nonce.size()) return std::nullopt;
  return nonce;
}

JobSecret::JobSecret(const std::string& job, const std::string& text) {
  start_sodium();
  SessionKey secret;
  LOCKSTEP_ASSERT(::crypto_generichash(secret.data(), secret.size(), bytes_of(text), text.size(),
                                       nullptr, 0) == 0);
  key_ = secret;
  key_ = hash("job", job, "");
}

SessionKey JobSecret::hash(std::string_view purpose, std::string_view first,
                           std::string_view second) const {
  crypto_generichash_state state;
  SessionKey result;
  bool good = ::crypto_generichash_init(&state, key_.data(), key_.size(), result.size()) == 0;
  for (const std::string_view part : {purpose, first, second}) {
    const std::uint64_t size = part.size();  // Where one part ends and the next begins counts.
    good = good &&
           ::crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&size),
                                       sizeof(size)) == 0 &&
           ::crypto_generichash_update(&state, bytes_of(part), part.size()) == 0;
  }
  LOCKSTEP_ASSERT(good && ::crypto_generichash_final(&state, result.data(), result.size()) == 0);
  return result;
}

std::string JobSecret::client_proof(const Nonce& client) const {
  return hex_of(hash("client's proof", view_of_bytes(client), ""));
}

std::string JobSecret::server_proof(const Nonce& client, const Nonce& server) const {
  return hex_of(hash("server's proof", view_of_bytes(client), view_of_bytes(server)));
}

std::string JobSecret::proof_of(std::string_view text) const {
  return hex_of(hash("text", text, ""));
}

bool JobSecret::same_proof(std::string_view shown, std::string_view wanted) {
  return shown.size() == wanted.size() &&
         ::sodium_memcmp(shown.data(), wanted.data(), wanted.size()) == 0;
}

SessionKey JobSecret::key_to_server(const Nonce& client, const Nonce& server) const {
  return hash("key to server", view_of_bytes(client), view_of_bytes(server));
}

SessionKey JobSecret::key_to_client(const Nonce& client, const Nonce& server) const {
  return hash("key to client", view_of_bytes(client), view_of_bytes(server));
}

std::string SealedMessages::seal(std::string_view text) {
  const SealNonce nonce = seal_nonce(number_++);
  std::string sealed(text.size() + crypto_aead_xchacha20poly1305_ietf_ABYTES, '\0');
  unsigned long long size = 0;
  ::crypto_aead_xchacha20poly1305_ietf_encrypt(reinterpret_cast<unsigned char*>(sealed.data()),
                                               &size, bytes_of(text), text.size(), nullptr, 0,
                                               nullptr, nonce.data(), key_.data());
  sealed.resize(size);
  return sealed;
}

std::optional<std::string> SealedMessages::open(std::string_view sealed) {
  if (sealed.size() < crypto_aead_xchacha20poly1305_ietf_ABYTES) return std::nullopt;
  const SealNonce nonce = seal_nonce(number_);
  std::string text(sealed.size() - crypto_aead_xchacha20poly1305_ietf_ABYTES, '\0');
  unsigned long long size = 0;
  if (::crypto_aead_xchacha20poly1305_ietf_decrypt(reinterpret_cast<unsigned char*>(text.data()),
                                                   &size, nullptr, bytes_of(sealed), sealed.size(),
                                                   nullptr, 0, nonce.data(), key_.data()) != 0) {
    return std::nullopt;
  }
  ++number_;
  return text;
}

}  // namespace lockstep::inline internal
