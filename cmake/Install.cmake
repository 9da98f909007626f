# What `cmake --install` lays down: the program `lockstep`, the libraries, the public headers (those directly in
# lockstep/ and in its folders) and a package of these targets. It can be moved: nothing in it is an absolute path
# but LibTorch's, which the user's own find_package(Torch) decides.
#
#   lockstep::lockstep          what lockstep/lockstep.h, fully_shard.h and tensor_parallel.h need
#   lockstep::rpc               lockstep/rpc.h
#   lockstep::pipeline          lockstep/pipeline.h
#   lockstep::parameter_server  lockstep/parameter_server.h
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
if(DEFINED CMAKE_INSTALL_DEFAULT_COMPONENT_NAME)
  set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME library)
endif()

add_library(lockstep_library INTERFACE)
add_library(lockstep::lockstep ALIAS lockstep_library)
set_target_properties(lockstep_library PROPERTIES EXPORT_NAME lockstep)
target_link_libraries(lockstep_library INTERFACE Threads::Threads)

install(TARGETS lockstep_library EXPORT lockstep_targets)
file(GLOB public_headers RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS lockstep/*.h lockstep/*/*.h)
foreach(header ${public_headers})
  get_filename_component(folder "${header}" DIRECTORY)
  install(FILES "${header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/${folder}")
endforeach()
get_property(folders GLOBAL PROPERTY LOCKSTEP_FOLDERS)
# What `spawn` has of the launcher.
list(APPEND folders lockstep::diagnose_capture lockstep::diagnose_verdict lockstep::launcher_job lockstep::launcher_rendezvous
  lockstep::launcher_logs lockstep::launcher_supervise)
foreach(folder ${folders})
  string(REGEX REPLACE "^lockstep::" "lockstep_" target "${folder}")
  install(TARGETS ${target} EXPORT lockstep_targets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  # These are linked by name.
  if(NOT folder MATCHES "^lockstep::(rpc|pipeline|parameter_server)$")
    target_link_libraries(lockstep_library INTERFACE ${target})
  endif()
endforeach()

set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/lockstep")
install(EXPORT lockstep_targets NAMESPACE lockstep:: DESTINATION "${package_folder}"
  FILE lockstepTargets.cmake)
configure_package_config_file(cmake/lockstepConfig.cmake.in
  "${PROJECT_BINARY_DIR}/lockstepConfig.cmake" INSTALL_DESTINATION "${package_folder}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/lockstepConfig.cmake"
  "${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake" DESTINATION "${package_folder}")
