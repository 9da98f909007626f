# An overlay port: vcpkg install lockstep --overlay-ports=packaging/vcpkg/ports
# vcpkg has no LibTorch of the version that Lockstep needs: name yours with the environment variable Torch_DIR.
if(NOT DEFINED ENV{Torch_DIR})
  message(FATAL_ERROR "set the environment variable Torch_DIR to the folder of TorchConfig.cmake (LibTorch 2.11 or later), "
    "and let vcpkg keep it: VCPKG_KEEP_ENV_VARS=Torch_DIR")
endif()
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../.." ABSOLUTE)

vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS "-DTorch_DIR=$ENV{Torch_DIR}" -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=32
    -DLOCKSTEP_BUILD_EXAMPLES=OFF -DLOCKSTEP_BUILD_TESTS=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/lockstep)

# Programs belong under tools/ in vcpkg.
file(GLOB programs RELATIVE "${CURRENT_PACKAGES_DIR}/bin" "${CURRENT_PACKAGES_DIR}/bin/*")
foreach(program ${programs})
  file(INSTALL "${CURRENT_PACKAGES_DIR}/bin/${program}" DESTINATION "${CURRENT_PACKAGES_DIR}/tools/${PORT}" USE_SOURCE_PERMISSIONS)
endforeach()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/bin" "${CURRENT_PACKAGES_DIR}/debug/bin" "${CURRENT_PACKAGES_DIR}/debug/include"
  "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
