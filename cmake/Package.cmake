# `cpack` in the build folder makes three Debian packages:
#
#   lockstep         the launcher and the tools that do not load LibTorch, man pages, completion for bash
#   liblockstep-dev  headers, libraries, the CMake package, and the tools that load LibTorch
#   lockstep-doc     the site, if scripts/docs.sh has built it, else the documents as text
#
# LibTorch is no package of Debian in the version that Lockstep needs: liblockstep-dev takes the user's. Its tools look for
# it in /usr/lib/lockstep/libtorch, a link to make.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_VENDOR "The Lockstep authors")
set(LOCKSTEP_PACKAGE_CONTACT "The Lockstep authors <lockstep@localhost>" CACHE STRING "Maintainer of the Debian packages")
set(CPACK_PACKAGE_CONTACT "${LOCKSTEP_PACKAGE_CONTACT}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # Each package has its own.
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL launcher library documents)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/packaging/deb/prepare.cmake")
set(CPACK_LOCKSTEP_SOURCE "${PROJECT_SOURCE_DIR}")

set(CPACK_DEBIAN_LAUNCHER_PACKAGE_NAME lockstep)
set(CPACK_COMPONENT_LAUNCHER_DESCRIPTION "launcher of distributed training jobs
Starts the workers of a training job on one machine or many, watches them,
explains failures and hangs, and replaces failed workers. Takes the flags of
torchrun and starts any program.")
set(CPACK_DEBIAN_LAUNCHER_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_LAUNCHER_PACKAGE_SUGGESTS "liblockstep-dev, lockstep-doc, python3")

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME liblockstep-dev)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "distributed data-parallel training for C++ on LibTorch
Headers, static libraries and a CMake package, and the tools that load
LibTorch. LibTorch 2.11 or later is not included: name yours with Torch_DIR,
and make /usr/lib/lockstep/libtorch a link to its folder for the tools.")
# What the static libraries are linked with.
set(CPACK_DEBIAN_LIBRARY_PACKAGE_DEPENDS
  "lockstep (= ${PROJECT_VERSION}), libc6, libgcc-s1, libstdc++6, libbz2-dev, libdw-dev, liblzma-dev, zlib1g-dev")

set(CPACK_DEBIAN_DOCUMENTS_PACKAGE_NAME lockstep-doc)
set(CPACK_DEBIAN_DOCUMENTS_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_DOCUMENTS_PACKAGE_SECTION doc)
set(CPACK_COMPONENT_DOCUMENTS_DESCRIPTION "documentation of Lockstep
Guides, the reference of the C++ API and of the command line, explanations.")

set(document_folder "${CMAKE_INSTALL_DATADIR}/doc/lockstep-doc")
install(DIRECTORY docs/ DESTINATION "${document_folder}/docs" COMPONENT documents EXCLUDE_FROM_ALL PATTERN site EXCLUDE)
install(FILES README.md DESTINATION "${document_folder}" COMPONENT documents EXCLUDE_FROM_ALL)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/build/docs/site/" DESTINATION "${document_folder}/html" COMPONENT documents
  OPTIONAL EXCLUDE_FROM_ALL)
include(CPack)
