# How our own code is compiled: C++20, warnings are errors, optional sanitizers, ccache where found.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# Assertions stay on in release builds; -g costs a third of the build time and is left to `dev`.
set(LOCKSTEP_OPTIMIZATION "-O2" CACHE STRING "How libraries are optimised in release builds")
set(CMAKE_CXX_FLAGS_RELEASE "${LOCKSTEP_OPTIMIZATION}")
# For folders that no call of a collective and no step's gradient passes: their time goes to system calls and LibTorch's
# kernels. It takes a third less time to compile than -O2 (docs/decisions/0024-build-time.md).
set(LOCKSTEP_SHORT_BUILD_FLAGS "$<$<CONFIG:Release>:-Og;-g0>")
# For programs of tests, and the commands of tools, which parse flags by templates of CLI11. The folders that they call
# keep their flags.
set(LOCKSTEP_UNOPTIMIZED_FLAGS "$<$<CONFIG:Release>:-O0;-g0>")
if(LOCKSTEP_OPTIMIZATION STREQUAL "-O0")
  set(LOCKSTEP_SHORT_BUILD_FLAGS "-O0;-g0")
endif()
# These two checks take two fifths of the time that the templates of Asio and CLI11 take to compile. Null pointers end a
# program in any case, and memory that processes share is used by folders with LibTorch, which keep both.
set(LOCKSTEP_CORE_FLAGS ${LOCKSTEP_SHORT_BUILD_FLAGS})
if(LOCKSTEP_SANITIZE MATCHES "undefined")
  list(APPEND LOCKSTEP_CORE_FLAGS -fno-sanitize=alignment,null)
endif()
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g1")

find_program(CCACHE_PROGRAM ccache)
# It would have to be told to overlook what precompiled headers hold.
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER AND NOT LOCKSTEP_PRECOMPILED_HEADERS)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()

# g++ collects its memory from 2 GB on, not from 0.3: an eighth of the time of most files, for a fifth more memory.
add_compile_options("$<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1000000>")

# Flags for targets of ours; not for users of the package.
add_library(lockstep_compile_options INTERFACE)
target_compile_options(lockstep_compile_options INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wunused -Werror
  # Nobody replaces our functions when a program is loaded: calls inside a file may be inlined, with -fPIC too.
  -fno-semantic-interposition
  # g++ 12 reports these inside inlined LibTorch and libstdc++ headers, at -O2, wrongly.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized -Wno-array-bounds -Wno-stringop-overflow
    -Wno-restrict>
  # Locks (lockstep/base/internal/mutex.h), which only clang checks. It takes names of files that are compiled together
  # for those of an outer scope.
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety -Wno-shadow>
  # g++ 13 takes a reference that a function returns for one to its temporary arguments.
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>>:-Wno-dangling-reference>)

target_compile_definitions(lockstep_compile_options INTERFACE LOCKSTEP_VERSION="${PROJECT_VERSION}")

if(LOCKSTEP_FAILPOINTS)
  target_compile_definitions(lockstep_compile_options INTERFACE LOCKSTEP_FAILPOINTS)
endif()

if(LOCKSTEP_SANITIZE)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # As g++ says it to the preprocessor.
    if(LOCKSTEP_SANITIZE MATCHES "address")
      add_compile_definitions(__SANITIZE_ADDRESS__)
    elseif(LOCKSTEP_SANITIZE MATCHES "thread")
      add_compile_definitions(__SANITIZE_THREAD__)
    endif()
  endif()
  add_compile_options(-fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${LOCKSTEP_SANITIZE})
  if(LOCKSTEP_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Headers of LibTorch have fences, which the thread sanitizer does not follow.
    add_compile_options(-Wno-tsan)
  endif()
endif()
