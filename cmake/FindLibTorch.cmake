# LibTorch, in this order: Torch_DIR or CMAKE_PREFIX_PATH, the project's .venv, an importable Python torch.
# The location is asked of Python without importing torch, which would take seconds.
if(NOT Torch_DIR)
  set(_ask "import importlib.util as u; s=u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')")
  foreach(_python "${PROJECT_SOURCE_DIR}/.venv/bin/python" python3)
    execute_process(COMMAND ${_python} -c "${_ask}" OUTPUT_VARIABLE _torch_root
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE _status)
    if(_status EQUAL 0 AND EXISTS "${_torch_root}/share/cmake/Torch/TorchConfig.cmake")
      list(APPEND CMAKE_PREFIX_PATH "${_torch_root}")
      break()
    endif()
  endforeach()
endif()

# Wheels carry no libkineto beside libtorch; naming one keeps TorchConfig from warning about it.
if(NOT DEFINED kineto_LIBRARY)
  set(kineto_LIBRARY torch CACHE STRING "LibTorch carries Kineto inside libtorch_cpu")
endif()
find_package(Torch QUIET)
if(NOT Torch_FOUND)
  message(FATAL_ERROR
    "LibTorch was not found. Run scripts/quickstart.sh, which installs it into .venv, or name it:\n"
    "  cmake --preset release -DCMAKE_PREFIX_PATH=/path/to/libtorch")
endif()
if(Torch_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "LibTorch ${Torch_VERSION} in ${Torch_DIR} is too old: Lockstep needs 2.11 or "
    "later; name another one with -DCMAKE_PREFIX_PATH=/path/to/libtorch")
endif()
get_filename_component(LOCKSTEP_TORCH_PREFIX "${Torch_DIR}/../../.." ABSOLUTE)
