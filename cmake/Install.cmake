# What `cmake --install` lays down: the program `lockstep`, the libraries and headers of the public
# folders, and the package lockstep::lockstep. It can be moved: nothing in it is an absolute path but
# LibTorch's, which the user's own find_package(Torch) decides.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(public_folders base os config launch record comm data profile snapshot amp ddp nn optim pipeline rpc train parameter_server)

add_library(lockstep_library INTERFACE)
add_library(lockstep::lockstep ALIAS lockstep_library)
set_target_properties(lockstep_library PROPERTIES EXPORT_NAME lockstep)
target_link_libraries(lockstep_library INTERFACE Threads::Threads)

install(TARGETS lockstep_library EXPORT lockstep_targets)
install(FILES lockstep/lockstep.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/lockstep")
foreach(folder ${public_folders})
  target_link_libraries(lockstep_library INTERFACE lockstep_${folder})
  install(TARGETS lockstep_${folder} EXPORT lockstep_targets
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  get_property(headers GLOBAL PROPERTY LOCKSTEP_HEADERS_${folder})
  foreach(header ${headers})
    get_filename_component(subfolder "lockstep/${folder}/${header}" DIRECTORY)
    install(FILES lockstep/${folder}/${header}
      DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/${subfolder}")
  endforeach()
endforeach()
install(TARGETS lockstep RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")

set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/lockstep")
install(EXPORT lockstep_targets NAMESPACE lockstep:: DESTINATION "${package_folder}"
  FILE lockstepTargets.cmake)
configure_package_config_file(cmake/lockstepConfig.cmake.in
  "${PROJECT_BINARY_DIR}/lockstepConfig.cmake" INSTALL_DESTINATION "${package_folder}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/lockstepConfig.cmake"
  "${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake" DESTINATION "${package_folder}")
