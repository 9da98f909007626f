#include "lockstep/recovery/internal/generations.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/comm/init_process_group.h"

namespace lockstep::inline internal {
namespace {

// Another generation begins: not an error, and no one else's to catch.
class GenerationOver : public Error {
 public:
  GenerationOver() : Error("the launcher ends this generation") {}
};

}  // namespace

bool ends_generation(const Error& error) {
  return dynamic_cast<const GenerationOver*>(&error) != nullptr ||
         dynamic_cast<const OperationError*>(&error) != nullptr;
}

void leave_generation(LauncherLink& link, const Error& why,
                      const std::function<std::int64_t()>& leave) {
  failpoint("recover.begin");
  const std::int64_t steps = leave();
  failpoint("recover.left");
  link.say_left_group(why, steps);
  failpoint("recover.said");
}

void check_if_over(const LauncherLink& link) {
  if (link.has_news()) throw GenerationOver();
}

void abandon_default_group(ProcessGroup& group) {
  if (group) {
    if (const auto backend = group.c10d_backend()) backend->abort();
  }
  group = {};
  destroy_process_group();
}

}  // namespace lockstep::inline internal
