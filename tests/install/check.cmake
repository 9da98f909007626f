# cmake -DBUILD=<build folder> -DWORK=<scratch folder> -DTORCH=<Torch_DIR> -P check.cmake
# Installs the build, moves the result elsewhere, and builds and runs a user's project against it.
cmake_minimum_required(VERSION 3.22)
file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN} ended with ${status}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/installed")
file(RENAME "${WORK}/installed" "${WORK}/moved")
run("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${WORK}/build" -G Ninja
  "-DCMAKE_PREFIX_PATH=${WORK}/moved" "-DTorch_DIR=${TORCH}" "-DCMAKE_CXX_FLAGS=${FLAGS}")  # Not optimised: in less time.
run("${CMAKE_COMMAND}" --build "${WORK}/build")
run("${WORK}/moved/bin/lockstep" run --standalone --nproc-per-node=2 "${WORK}/build/app")
foreach(rank 0 1)
  if(NOT output MATCHES "rank ${rank} of 2 has 1024 samples")
    message(FATAL_ERROR "rank ${rank} is missing in:\n${output}")
  endif()
endforeach()

function(expect_of_beside line)
  run("${WORK}/moved/bin/lockstep" run --standalone --nproc-per-node=2 "${WORK}/build/beside" ${ARGN})
  if(NOT output MATCHES "${line}")
    message(FATAL_ERROR "'${line}' is missing in:\n${output}")
  endif()
endfunction()
expect_of_beside("rank 1: losses are finite, twice 21 is 42")
expect_of_beside("3 steps were served" servers)
