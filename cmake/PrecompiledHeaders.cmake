# With LOCKSTEP_PRECOMPILED_HEADERS, LibTorch's headers that most files include are read once, which is a quarter of the
# time that a folder with LibTorch takes. Files that stand alone without that do so with it.
#
# lockstep_precompiled_headers(<target> [UNOPTIMIZED]): UNOPTIMIZED for targets with LOCKSTEP_UNOPTIMIZED_FLAGS.
set(lockstep_headers
  <ATen/ATen.h> <ATen/core/ivalue.h> <torch/csrc/distributed/c10d/Backend.hpp>
  <torch/csrc/distributed/c10d/Store.hpp> <torch/nn/module.h> <torch/nn/modules/container/sequential.h>
  <torch/nn/modules/linear.h> <torch/optim/adam.h> <torch/optim/sgd.h>)

if(LOCKSTEP_PRECOMPILED_HEADERS)
  set(source "${PROJECT_BINARY_DIR}/lockstep_headers.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "")
  add_library(lockstep_headers OBJECT EXCLUDE_FROM_ALL "${source}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # An empty file of C, for which the headers are empty, too: in C++ it would take seconds.
    set_source_files_properties("${source}" PROPERTIES COMPILE_OPTIONS "-x;c;-w")
  endif()
  set_target_properties(lockstep_headers PROPERTIES UNITY_BUILD OFF)
  target_link_libraries(lockstep_headers PRIVATE torch)
  target_compile_options(lockstep_headers PRIVATE -fPIC)
  target_precompile_headers(lockstep_headers PRIVATE ${lockstep_headers})
endif()

# lockstep_macros_of(<level> <variable>): the macros that the compiler defines at this level of optimisation.
function(lockstep_macros_of level variable)
  execute_process(COMMAND "${CMAKE_CXX_COMPILER}" ${level} -std=c++20 -dM -E -x c++ /dev/null OUTPUT_VARIABLE macros
    COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" macros "${macros}")
  set(${variable} ${macros} PARENT_SCOPE)
endfunction()

# What makes -O0 look like the level of the headers: g++ wants the same macros where headers are compiled and where they
# are read. __OPTIMIZE__ and __NO_INLINE__, and _FORTIFY_SOURCE where a distribution sets it.
set(lockstep_macros "")
if(LOCKSTEP_PRECOMPILED_HEADERS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  lockstep_macros_of("${LOCKSTEP_OPTIMIZATION}" optimized)
  lockstep_macros_of(-O0 unoptimized)
  set(defined ${optimized})
  list(REMOVE_ITEM defined ${unoptimized})
  list(TRANSFORM defined REPLACE "^#define ([^ ]+) ?" "-D\\1=")
  set(undefined ${unoptimized})
  list(REMOVE_ITEM undefined ${optimized})
  list(TRANSFORM undefined REPLACE "^#define ([^ ]+).*" "-U\\1")
  set(lockstep_macros ${defined} ${undefined})
endif()

function(lockstep_precompiled_headers target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "UNOPTIMIZED" "" "")
  if(NOT LOCKSTEP_PRECOMPILED_HEADERS)
    return()
  endif()
  if(arg_UNOPTIMIZED AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT LOCKSTEP_OPTIMIZATION STREQUAL "-O0")
    return()  # clang reads headers of the same level only.
  endif()
  target_precompile_headers(${target} REUSE_FROM lockstep_headers)
  # Headers are read where they are compiled for the same kind of code, which differs between libraries and programs.
  target_compile_options(${target} PRIVATE -fPIC)
  if(arg_UNOPTIMIZED)
    target_compile_options(${target} PRIVATE "$<$<CONFIG:Release>:${lockstep_macros}>")
  endif()
endfunction()
