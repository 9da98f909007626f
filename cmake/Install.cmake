# What `cmake --install` lays down: the program `lockstep`, the libraries and headers of the public
# folders, and the package lockstep::lockstep. It can be moved: nothing in it is an absolute path but
# LibTorch's, which the user's own find_package(Torch) decides.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_library(lockstep_library INTERFACE)
add_library(lockstep::lockstep ALIAS lockstep_library)
set_target_properties(lockstep_library PROPERTIES EXPORT_NAME lockstep)
target_link_libraries(lockstep_library INTERFACE Threads::Threads)

install(TARGETS lockstep_library EXPORT lockstep_targets)
install(DIRECTORY lockstep DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.h" PATTERN "*_testing.h" EXCLUDE)
get_property(folders GLOBAL PROPERTY LOCKSTEP_FOLDERS)
# What `spawn` has of the launcher.
list(APPEND folders lockstep::diagnose_capture lockstep::diagnose_verdict lockstep::launcher_job lockstep::launcher_rendezvous
  lockstep::launcher_logs lockstep::launcher_supervise)
list(TRANSFORM folders REPLACE "^lockstep::" lockstep_)
foreach(folder ${folders})
  target_link_libraries(lockstep_library INTERFACE ${folder})
  install(TARGETS ${folder} EXPORT lockstep_targets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
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
