#include "launcher/cli/read_job_secret.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "launcher/job/console.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/os/files/readable_file.h"

namespace lockstep::inline internal {
namespace {

// Whoever overhears the launchers meet can try short ones at leisure.
void note_if_short(const std::string& secret) {
  constexpr std::size_t kLong = 16;
  if (secret.size() >= kLong) return;
  say(concat("note: the job's secret has ", count_text(secret.size(), "character"),
             ", which can be guessed; openssl rand -hex 32 makes a good one"));
}

void note_if_readable_by_others(const std::string& file) {
  std::error_code error;
  const auto mode = std::filesystem::status(file, error).permissions();
  using std::filesystem::perms;
  if (error || (mode & (perms::group_read | perms::others_read)) == perms::none) return;
  say(concat("note: others on this machine may read --secret-file=", file, "; chmod 600 ", file));
}

ReadableFile open_secret(const std::string& file) try {
  return ReadableFile(file);
} catch (const SystemError& error) {
  throw SystemError(concat("--secret-file=", file), error.errno_value(),
                    concat("create it on one machine (umask 077; openssl rand -hex 32 > ", file,
                           "), then copy it to the others"));
}

}  // namespace

std::string read_job_secret(const std::string& file) {
  if (file.empty()) {
    const std::string given = env::text(env::kJobSecret).value_or("");
    if (!given.empty()) note_if_short(given);
    return given;
  }
  constexpr std::uint64_t kLongestBytes = 4'096;
  const ReadableFile opened = open_secret(file);
  std::string secret(std::min(opened.size_bytes(), kLongestBytes), '\0');
  opened.read(0, secret.data(), secret.size());
  // Without the line end that editors leave.
  while (!secret.empty() && std::isspace(static_cast<unsigned char>(secret.back()))) {
    secret.pop_back();
  }
  note_if_readable_by_others(file);
  if (secret.empty())
    throw UsageError(concat("--secret-file=", file,
                            ": there is nothing in it; openssl rand -hex 32 > ", file,
                            " makes one"));
  note_if_short(secret);
  return secret;
}

}  // namespace lockstep::inline internal
