# lockstep_folder(<name> [TORCH [OPTIMIZED]] SOURCES ... TESTS ... DEPENDS ...)
# One static library a folder: lockstep::comm for lockstep/comm, lockstep::launcher_job for launcher/job. Files
# are listed, never globbed. The tests beside the sources are collected: those of folders without LibTorch run
# in `core_tests`, the others in `torch_tests`. OPTIMIZED: calls of collectives or gradients pass it.
#
# lockstep_tool(<name> [TORCH] SOURCES ... TESTS ... DEPENDS ...)
# A command of the program `lockstep`: tools/<name>/. With TORCH it is the program lockstep-<name>, which `lockstep <name>`
# becomes: its main.cpp, and a library of the rest for its tests.
include(GNUInstallDirs)

define_property(GLOBAL PROPERTY LOCKSTEP_FOLDERS BRIEF_DOCS "Folders of the library" FULL_DOCS "Folders of the library")
define_property(GLOBAL PROPERTY LOCKSTEP_CORE_FOLDERS BRIEF_DOCS "Folders without LibTorch" FULL_DOCS "Folders without LibTorch")
define_property(GLOBAL PROPERTY LOCKSTEP_TORCH_FOLDERS BRIEF_DOCS "Folders with LibTorch" FULL_DOCS "Folders with LibTorch")
define_property(GLOBAL PROPERTY LOCKSTEP_COMMANDS BRIEF_DOCS "Commands of lockstep" FULL_DOCS "Sources of tools in lockstep")
define_property(GLOBAL PROPERTY LOCKSTEP_COMMAND_LIBRARIES BRIEF_DOCS "What they need" FULL_DOCS "Libraries of those sources")
define_property(GLOBAL PROPERTY LOCKSTEP_CORE_TESTS BRIEF_DOCS "Test sources" FULL_DOCS "Test sources")
define_property(GLOBAL PROPERTY LOCKSTEP_TORCH_TESTS BRIEF_DOCS "Test sources" FULL_DOCS "Test sources")

function(lockstep_folder name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;OPTIMIZED" "" "SOURCES;TESTS;DEPENDS")
  string(REPLACE "/" "_" short "${name}")
  set(target lockstep_${short})
  add_library(${target} STATIC ${arg_SOURCES})
  add_library(lockstep::${short} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${short})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_link_libraries(${target} PRIVATE "$<BUILD_INTERFACE:lockstep_compile_options>")
  foreach(dependency ${arg_DEPENDS})
    string(REPLACE "/" "_" dependency "${dependency}")
    target_link_libraries(${target} PUBLIC lockstep_${dependency})
  endforeach()
  if(arg_TORCH)
    # The target `torch`, not ${TORCH_LIBRARIES}: the latter writes absolute paths into the export.
    target_link_libraries(${target} PUBLIC torch)
    lockstep_precompiled_headers(${target})
    if(NOT arg_OPTIMIZED)
      target_compile_options(${target} PRIVATE ${LOCKSTEP_SHORT_BUILD_FLAGS})
    endif()
    set(kind TORCH)
  else()
    target_compile_options(${target} PRIVATE ${LOCKSTEP_CORE_FLAGS})
    set(kind CORE)
  endif()
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_${kind}_FOLDERS lockstep::${short})
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/lockstep/")
    set_property(GLOBAL APPEND PROPERTY LOCKSTEP_FOLDERS lockstep::${short})
  endif()
  foreach(test ${arg_TESTS})
    set_property(GLOBAL APPEND PROPERTY LOCKSTEP_${kind}_TESTS "${CMAKE_CURRENT_SOURCE_DIR}/${test}")
  endforeach()
endfunction()

# Where programs are installed, and where they look for LibTorch.
set(LOCKSTEP_PROGRAM_FOLDER "${CMAKE_INSTALL_BINDIR}")
set(LOCKSTEP_PROGRAM_RPATH "${LOCKSTEP_TORCH_PREFIX}/lib")
if(SKBUILD)
  # Of a wheel: into the folder of scripts. Seen from there, PyTorch lies where pip puts packages: in an environment,
  # in Debian's, or with --target.
  find_package(Python REQUIRED COMPONENTS Interpreter)
  set(LOCKSTEP_PROGRAM_FOLDER "${SKBUILD_SCRIPTS_DIR}")
  set(python_folder "$ORIGIN/../lib/python${Python_VERSION_MAJOR}.${Python_VERSION_MINOR}")
  set(LOCKSTEP_PROGRAM_RPATH
    "${python_folder}/site-packages/torch/lib" "${python_folder}/dist-packages/torch/lib" "$ORIGIN/../torch/lib")
endif()

function(lockstep_tool name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "" "SOURCES;TESTS;DEPENDS")
  if(arg_TORCH)
    lockstep_folder(tools/${name} ${ARGN})
    target_link_libraries(lockstep_tools_${name} PUBLIC CLI11::CLI11)
    lockstep_installed_program(lockstep-${name} main.cpp lockstep::tools_${name})
    return()
  endif()
  # What parses flags by templates of CLI11 is read as one file: tools/CMakeLists.txt. The rest has tests.
  set(commands ${arg_SOURCES})
  list(FILTER commands INCLUDE REGEX "_command\\.cpp$")
  list(REMOVE_ITEM arg_SOURCES ${commands})
  foreach(command ${commands})
    set_property(GLOBAL APPEND PROPERTY LOCKSTEP_COMMANDS "${CMAKE_CURRENT_SOURCE_DIR}/${command}")
  endforeach()
  if(arg_SOURCES)
    lockstep_folder(tools/${name} SOURCES ${arg_SOURCES} TESTS ${arg_TESTS} DEPENDS ${arg_DEPENDS})
    set(arg_DEPENDS tools/${name})
  endif()
  list(TRANSFORM arg_DEPENDS REPLACE "/" "_")
  list(TRANSFORM arg_DEPENDS PREPEND "lockstep::")
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_COMMAND_LIBRARIES ${arg_DEPENDS})
endfunction()

# lockstep_installed_program(<target> <source> <libraries>): a program that is installed beside `lockstep`.
function(lockstep_installed_program target source)
  add_executable(${target} ${source})
  target_link_libraries(${target} PRIVATE ${ARGN} lockstep_compile_options)
  # Ranks read LibTorch's headers, which are precompiled with the flags of libraries.
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/tools/" AND NOT target MATCHES "-rank$")
    target_compile_options(${target} PRIVATE ${LOCKSTEP_UNOPTIMIZED_FLAGS})
  endif()
  # Installed, too, it finds the LibTorch that it was linked with.
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${LOCKSTEP_PROGRAM_RPATH}")
  install(TARGETS ${target} RUNTIME DESTINATION "${LOCKSTEP_PROGRAM_FOLDER}")
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_TOOLS ${target})
endfunction()
