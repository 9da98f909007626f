# Man pages and completion for bash, made from the parsers of the programs that this build has just linked.
# Target `manual`, in `all`. Without Python, or for a sanitizer's build, there are none.
find_package(Python3 COMPONENTS Interpreter)
if(NOT Python3_FOUND OR LOCKSTEP_SANITIZE)
  return()
endif()

get_property(tools GLOBAL PROPERTY LOCKSTEP_TOOLS)
set(manual_folder "${PROJECT_BINARY_DIR}/manual")
set(manual_script "${PROJECT_SOURCE_DIR}/scripts/render_commands.py")
add_custom_command(OUTPUT "${manual_folder}/stamp"
  COMMAND "${CMAKE_COMMAND}" -E rm -rf "${manual_folder}"
  COMMAND "${Python3_EXECUTABLE}" "${manual_script}" $<TARGET_FILE:lockstep> "--version=${PROJECT_VERSION}"
    "--man=${manual_folder}/man1" "--completion=${manual_folder}/lockstep"
  COMMAND "${CMAKE_COMMAND}" -E touch "${manual_folder}/stamp"
  DEPENDS lockstep ${tools} "${manual_script}" VERBATIM)
add_custom_target(manual ALL DEPENDS "${manual_folder}/stamp")

# The names of the pages follow from the programs.
install(DIRECTORY "${manual_folder}/man1/" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1"
  COMPONENT launcher FILES_MATCHING PATTERN "*.1")
install(FILES "${manual_folder}/lockstep" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions"
  COMPONENT launcher)
