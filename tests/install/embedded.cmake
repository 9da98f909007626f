# cmake -DSOURCE=<repository> -DWORK=<scratch folder> -DTORCH=<Torch_DIR> -P embedded.cmake
# Lockstep as a part of a user's project: by FetchContent from a local clone, and by add_subdirectory. Both are
# configured; the first is built and run, with its own copy of the launcher.
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

set(add_FetchContent "include(FetchContent)
FetchContent_Declare(lockstep GIT_REPOSITORY \"file://${WORK}/clone\" GIT_TAG HEAD)
FetchContent_MakeAvailable(lockstep)")
set(add_subdirectory "add_subdirectory(\"${WORK}/clone\" lockstep)")
run(git clone --quiet --local "${SOURCE}" "${WORK}/clone")
foreach(way FetchContent subdirectory)
  file(MAKE_DIRECTORY "${WORK}/${way}")
  file(COPY "${CMAKE_CURRENT_LIST_DIR}/main.cpp" DESTINATION "${WORK}/${way}")
  file(WRITE "${WORK}/${way}/CMakeLists.txt" "cmake_minimum_required(VERSION 3.24)
project(embedding LANGUAGES CXX)
${add_${way}}
add_executable(app main.cpp)
target_link_libraries(app lockstep::lockstep)
")
  run("${CMAKE_COMMAND}" -S "${WORK}/${way}" -B "${WORK}/${way}/build" -G Ninja "-DTorch_DIR=${TORCH}"
    -DCMAKE_BUILD_TYPE=Release)
endforeach()

run("${CMAKE_COMMAND}" --build "${WORK}/FetchContent/build" --target app lockstep)
set(launcher "${WORK}/FetchContent/build/_deps/lockstep-build/bin/lockstep")
run("${launcher}" run --standalone --nproc-per-node=2 "${WORK}/FetchContent/build/app")
foreach(rank 0 1)
  if(NOT output MATCHES "rank ${rank} of 2 has 1024 samples")
    message(FATAL_ERROR "rank ${rank} is missing in:\n${output}")
  endif()
endforeach()
