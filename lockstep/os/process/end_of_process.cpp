#include "lockstep/os/process/end_of_process.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include <unistd.h>

#include "lockstep/os/process/loaded_libraries.h"

extern "C" {
// The destructors of the program itself, by the linker.
[[gnu::weak, gnu::visibility("hidden")]] extern void (*const __fini_array_start[])();
[[gnu::weak, gnu::visibility("hidden")]] extern void (*const __fini_array_end[])();
// Of a program that writes a report at its end: of leaks, or a profile for gprof.
[[gnu::weak]] void __lsan_do_leak_check();
[[gnu::weak]] void __gmon_start__();
// The open streams, as glibc exports them.
[[gnu::weak]] FILE* _IO_iter_begin();
[[gnu::weak]] FILE* _IO_iter_end();
[[gnu::weak]] FILE* _IO_iter_next(FILE* stream);
[[gnu::weak]] void _IO_list_lock();
[[gnu::weak]] void _IO_list_unlock();
}

namespace lockstep::inline internal {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// fflush(nullptr) would wait for threads that read or write: exit() does not.
void flush_streams() {
  for (std::ostream* stream : {&std::cout, &std::cerr, &std::clog}) stream->flush();
  for (std::wostream* stream : {&std::wcout, &std::wcerr, &std::wclog}) stream->flush();
  _IO_list_lock();
  for (FILE* stream = _IO_iter_begin(); stream != _IO_iter_end(); stream = _IO_iter_next(stream)) {
    if (::ftrylockfile(stream) != 0) continue;
    ::fflush_unlocked(stream);
    ::funlockfile(stream);
  }
  _IO_list_unlock();
}

// Registered before all that main() registers, and so called after it.
void end(int status, void* /*unused*/) {
  // Ranks that fail because another one has failed are not to be the first to end.
  if (status != 0) return;
  if (!has_only_runtime_libraries()) return;  // The program has loaded another.
  for (auto* destructor = __fini_array_end; destructor != __fini_array_start;) (*--destructor)();
  flush_streams();
  ::_exit(status);
}

}  // namespace

void end_without_destructors_of_libraries() {
  const bool reports_at_end =
      kSanitized || __lsan_do_leak_check != nullptr || __gmon_start__ != nullptr;
  const bool can_flush = _IO_iter_begin != nullptr && _IO_list_lock != nullptr;
  if (!reports_at_end && can_flush && has_only_runtime_libraries()) ::on_exit(end, nullptr);
}

}  // namespace lockstep::inline internal
