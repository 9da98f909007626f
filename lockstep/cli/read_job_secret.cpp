#include "lockstep/cli/read_job_secret.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "lockstep/base/concat.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/os/readable_file.h"

namespace lockstep {

namespace {

ReadableFile open_secret(const std::string& file) try {
  return ReadableFile(file);
} catch (const SystemError& error) {
  throw SystemError(
      concat("--secret-file=", file), error.errno_value(),
      "give a file that is on this machine too, as in: openssl rand -hex 32 > " + file);
}

}  // namespace

std::string read_job_secret(const std::string& file) {
  if (file.empty()) return env::text(env::kJobSecret).value_or("");
  constexpr std::uint64_t kLongestBytes = 4'096;
  const ReadableFile opened = open_secret(file);
  std::string secret(std::min(opened.size_bytes(), kLongestBytes), '\0');
  opened.read(0, secret.data(), secret.size());
  // Without the line end that editors leave.
  while (!secret.empty() && std::isspace(static_cast<unsigned char>(secret.back()))) {
    secret.pop_back();
  }
  if (secret.empty()) throw UsageError(concat("--secret-file=", file, ": there is nothing in it"));
  return secret;
}

}  // namespace lockstep
