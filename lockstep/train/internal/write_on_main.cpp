#include "lockstep/train/internal/write_on_main.h"

#include <exception>

#include "lockstep/base/internal/failpoint.h"

namespace lockstep::inline internal {

// An error on one rank would leave the others in the barriers.
void write_on_main(Accelerator& accelerator, const std::function<void()>& write,
                   const std::function<void()>& gather) {
  std::exception_ptr error;
  accelerator.run_on_survivors([&] {
    error = nullptr;  // of a run that is repeated
    gather();
    if (!accelerator.is_main_process()) return;
    try {
      write();
      failpoint("metrics.written");
    } catch (...) {
      error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

}  // namespace lockstep::inline internal
