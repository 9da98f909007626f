# What the wheel holds beside an installation: the static libraries of the system that programs of its users link, so that
# these need no development packages, with their licenses. cmake/lockstepConfig.cmake.in names their folder to the linker.
foreach(library dw elf z lzma bz2 backtrace)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=lib${library}.a OUTPUT_VARIABLE archive
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT IS_ABSOLUTE "${archive}")
    message(FATAL_ERROR "The wheel needs lib${library}.a: scripts/wheel.sh installs it")
  endif()
  get_filename_component(archive "${archive}" REALPATH)
  install(FILES "${archive}" DESTINATION lib/system)
endforeach()
# Of these and of what programs and libraries are compiled with.
string(REGEX MATCH "^[0-9]+" gcc_version "${CMAKE_CXX_COMPILER_VERSION}")
foreach(package libdw-dev libelf-dev zlib1g-dev liblzma-dev libbz2-dev libgcc-${gcc_version}-dev libsodium-dev libboost-dev
    libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libxxhash-dev)
  install(FILES "/usr/share/doc/${package}/copyright" DESTINATION licenses RENAME "${package}.txt")
endforeach()
