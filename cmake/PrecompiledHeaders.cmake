# With LOCKSTEP_PRECOMPILED_HEADERS, the headers that most files include are read once for each set of flags; they take
# a quarter of the time of a build from nothing without LibTorch, and most of it with. Files that stand alone without
# that do so with it.
#
# lockstep_precompiled_headers(<target> <set>): the set is `torch` or `core`, with the flags of libraries with and without
# LibTorch, or `torch_tests` or `core_tests`, with the flags of the programs of tests.
set(lockstep_headers_torch
  <ATen/ATen.h> <ATen/core/ivalue.h> <torch/csrc/distributed/c10d/Backend.hpp>
  <torch/csrc/distributed/c10d/Store.hpp> <torch/nn/module.h> <torch/nn/modules/container/sequential.h>
  <torch/nn/modules/linear.h> <torch/optim/adam.h> <torch/optim/sgd.h>)
set(lockstep_headers_torch_tests ${lockstep_headers_torch} <gtest/gtest.h>)
set(lockstep_headers_core
  <algorithm> <chrono> <filesystem> <fstream> <functional> <map> <memory> <optional> <set> <sstream> <string> <vector>
  <nlohmann/json.hpp>)
set(lockstep_headers_core_tests ${lockstep_headers_core} <gtest/gtest.h>)

# What g++ wants to be the same where headers are compiled and where they are read: libraries and programs differ in
# -fPIC, and the targets of GTest define this.
foreach(kind torch core)
  set(lockstep_flags_${kind} -fPIC)
  set(lockstep_flags_${kind}_tests -fPIE -DGTEST_HAS_PTHREAD=1)
endforeach()
# And the level of optimisation, which the targets set themselves. Headers without debug information do not serve files with.
if(NOT LOCKSTEP_OPTIMIZATION STREQUAL "-O0")
  set(lockstep_optimization_torch_tests ${LOCKSTEP_UNOPTIMIZED_FLAGS})
endif()
set(lockstep_optimization_core ${LOCKSTEP_CORE_FLAGS})
set(lockstep_optimization_core_tests ${LOCKSTEP_CORE_FLAGS})
set(lockstep_libraries_torch torch)
set(lockstep_libraries_torch_tests torch)
set(lockstep_libraries_core nlohmann_json::nlohmann_json)
set(lockstep_libraries_core_tests nlohmann_json::nlohmann_json)

# Where libraries are not optimised either, the sets of the tests serve both.
set(lockstep_sets torch core)
if(LOCKSTEP_BUILD_TESTS)
  list(APPEND lockstep_sets torch_tests core_tests)
  if(LOCKSTEP_OPTIMIZATION STREQUAL "-O0")
    list(REMOVE_ITEM lockstep_sets torch core)
  endif()
endif()

if(LOCKSTEP_PRECOMPILED_HEADERS)
  foreach(set ${lockstep_sets})
    file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/headers_${set}.cpp" CONTENT "")
    add_library(lockstep_headers_${set} OBJECT EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/headers_${set}.cpp")
    # An empty file of C, for which the headers are empty, too: in C++ it would take seconds.
    set_source_files_properties("${PROJECT_BINARY_DIR}/headers_${set}.cpp" PROPERTIES COMPILE_OPTIONS "-x;c;-w")
    set_target_properties(lockstep_headers_${set} PROPERTIES UNITY_BUILD OFF)
    target_link_libraries(lockstep_headers_${set} PRIVATE ${lockstep_libraries_${set}} lockstep_compile_options)
    target_compile_options(lockstep_headers_${set} PRIVATE ${lockstep_optimization_${set}} ${lockstep_flags_${set}})
    target_precompile_headers(lockstep_headers_${set} PRIVATE ${lockstep_headers_${set}})
  endforeach()
endif()

function(lockstep_precompiled_headers target set)
  if(NOT LOCKSTEP_PRECOMPILED_HEADERS)
    return()
  endif()
  if(NOT set IN_LIST lockstep_sets)
    string(APPEND set _tests)
  endif()
  target_precompile_headers(${target} REUSE_FROM lockstep_headers_${set})
  target_compile_options(${target} PRIVATE ${lockstep_flags_${set}})
endfunction()
