#pragma once

#include <cstdio>
#include <cstdlib>

/// Our own mistake, never the caller's: prints the broken invariant and aborts. On in every build.
#define LOCKSTEP_ASSERT(condition)                                                         \
  do {                                                                                     \
    if (!(condition)) [[unlikely]] {                                                       \
      std::fprintf(stderr, "lockstep: broken invariant %s at %s:%d, please report this\n", \
                   #condition, __FILE__, __LINE__);                                        \
      std::abort();                                                                        \
    }                                                                                      \
  } while (false)
