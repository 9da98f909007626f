# With LOCKSTEP_PRECOMPILED_HEADERS, LibTorch's headers, which take most of the time of a build from
# nothing, are read once for each set of flags. Files that stand alone without that do so with it.
#
# lockstep_precompiled_headers(<target> <set>): the set is `torch` (the flags of libraries) or
# `torch_tests` (those of the programs of tests).
set(lockstep_headers_torch
  <ATen/ATen.h> <ATen/core/ivalue.h> <torch/csrc/distributed/c10d/Backend.hpp>
  <torch/csrc/distributed/c10d/Store.hpp> <torch/nn/module.h> <torch/nn/modules/container/sequential.h>
  <torch/nn/modules/linear.h> <torch/optim/adam.h> <torch/optim/sgd.h>)
set(lockstep_headers_torch_tests ${lockstep_headers_torch} <gtest/gtest.h>)

# What g++ wants to be the same where headers are compiled and where they are read, beside the level of
# optimisation: libraries and programs differ in -fPIC, and the targets of GTest define this.
set(lockstep_flags_torch -fPIC)
set(lockstep_flags_torch_tests -fPIE -DGTEST_HAS_PTHREAD=1)

# Where libraries are not optimised either, the set of the tests serves both.
set(lockstep_sets torch torch_tests)
if(LOCKSTEP_OPTIMIZATION STREQUAL "-O0" AND LOCKSTEP_BUILD_TESTS)
  set(lockstep_sets torch_tests)
endif()

if(LOCKSTEP_PRECOMPILED_HEADERS)
  foreach(set ${lockstep_sets})
    file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/headers_${set}.cpp" CONTENT "")
    add_library(lockstep_headers_${set} OBJECT EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/headers_${set}.cpp")
    # An empty file of C, for which the headers are empty, too: in C++ it would take seconds.
    set_source_files_properties("${PROJECT_BINARY_DIR}/headers_${set}.cpp" PROPERTIES COMPILE_OPTIONS "-x;c;-w")
    set_target_properties(lockstep_headers_${set} PROPERTIES UNITY_BUILD OFF)
    target_link_libraries(lockstep_headers_${set} PRIVATE torch lockstep_compile_options)
    target_compile_options(lockstep_headers_${set} PRIVATE ${lockstep_flags_${set}})
    target_precompile_headers(lockstep_headers_${set} PRIVATE ${lockstep_headers_${set}})
  endforeach()
  if(torch IN_LIST lockstep_sets)
    target_compile_options(lockstep_headers_torch_tests PRIVATE ${LOCKSTEP_UNOPTIMIZED_FLAGS})
  endif()
endif()

function(lockstep_precompiled_headers target set)
  if(NOT LOCKSTEP_PRECOMPILED_HEADERS)
    return()
  endif()
  if(NOT set IN_LIST lockstep_sets)
    set(set torch_tests)
  endif()
  target_precompile_headers(${target} REUSE_FROM lockstep_headers_${set})
  target_compile_options(${target} PRIVATE ${lockstep_flags_${set}})
endfunction()
