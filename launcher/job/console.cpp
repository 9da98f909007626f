#include "launcher/job/console.h"

#include <string>

#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/pipe.h"

namespace lockstep::inline internal {
namespace {

constexpr std::chrono::milliseconds kPatience{1000};

}  // namespace

void say(std::string_view message) noexcept try {
  say_text(concat("lockstep: ", message, "\n"));
} catch (...) {
  // Out of memory: the message is lost, the workers are still looked after.
}

void say_text(std::string_view text) noexcept {
  write_all(STDERR_FILENO, text, Deadline::after(kPatience));
}

}  // namespace lockstep::inline internal
