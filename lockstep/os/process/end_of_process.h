#pragma once

/// At the end of a process, LibTorch takes back each operator that it has registered. That takes
/// 0.07 s of processor time, and twice as long in a forked worker, since it writes to the pages
/// that forked workers share.
namespace lockstep::inline internal {

/// After main() or exit() with status 0, the destructors of the program's static objects run and its streams are
/// flushed; those of its shared libraries do not run. Call it once, when the libraries are
/// initialized and no static object is: in a constructor with a priority. Does nothing where that
/// may matter: if any other library than LibTorch's for CPUs, the compiler's and the C library's is
/// loaded then or at the end, or if the program writes a report at its end, as under a sanitizer or
/// gprof.
void end_without_destructors_of_libraries();

}  // namespace lockstep::inline internal
