# Run by cpack before it packs what was installed: puts files where Debian wants them.
file(READ "${CPACK_LOCKSTEP_SOURCE}/LICENSE" license)
string(REGEX REPLACE "^[^\n]*\n\n[^\n]*\n\n" "" license "${license}")
string(REGEX REPLACE "\n\n" "\n.\n" license "${license}")
string(REGEX REPLACE "\n([^\n])" "\n \\1" license "\n${license}")
string(TIMESTAMP today "%a, %d %b %Y %H:%M:%S +0000" UTC)

function(folder_of component result)
  set(${result} "${CPACK_TEMPORARY_DIRECTORY}/${component}/usr" PARENT_SCOPE)
endfunction()

# Programs that need LibTorch belong to the package that says so.
folder_of(launcher launcher)
folder_of(library library)
set(torch_folder "/usr/lib/lockstep/libtorch/lib")
file(GLOB programs "${launcher}/bin/*")
foreach(program ${programs})
  get_filename_component(name "${program}" NAME)
  file(READ_ELF "${program}" RPATH rpath RUNPATH runpath)
  execute_process(COMMAND objdump -p "${program}" OUTPUT_VARIABLE headers ERROR_QUIET)
  if(NOT headers MATCHES "NEEDED +libtorch")
    if(rpath OR runpath)
      file(RPATH_REMOVE FILE "${program}")
    endif()
    continue()
  endif()
  # The builder's folder is not there on other machines. A longer path than that does not fit into the file.
  string(LENGTH "${rpath}${runpath}" room)
  string(LENGTH "${torch_folder}" length)
  if(room LESS length)
    file(RPATH_REMOVE FILE "${program}")
  else()
    file(RPATH_SET FILE "${program}" NEW_RPATH "${torch_folder}")
  endif()
  file(MAKE_DIRECTORY "${library}/bin" "${library}/share/man/man1")
  file(RENAME "${program}" "${library}/bin/${name}")
  if(EXISTS "${launcher}/share/man/man1/${name}.1")
    file(RENAME "${launcher}/share/man/man1/${name}.1" "${library}/share/man/man1/${name}.1")
  endif()
endforeach()

foreach(line "launcher lockstep" "library liblockstep-dev" "documents lockstep-doc")
  separate_arguments(line)
  list(GET line 0 component)
  list(GET line 1 package)
  folder_of(${component} folder)
  set(documents "${folder}/share/doc/${package}")
  file(MAKE_DIRECTORY "${documents}")
  file(WRITE "${documents}/copyright" "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Lockstep

Files: *
Copyright: 2026, the Lockstep authors
License: BSD-3-Clause
${license}")
  file(WRITE "${documents}/changelog" "lockstep (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * See CHANGELOG.md of this version.

 -- ${CPACK_PACKAGE_CONTACT}  ${today}
")
  file(GLOB pages "${folder}/share/man/man1/*.1")
  execute_process(COMMAND gzip -n -9 -f "${documents}/changelog" ${pages} COMMAND_ERROR_IS_FATAL ANY)
  if(EXISTS "${CPACK_LOCKSTEP_SOURCE}/packaging/deb/${package}.lintian-overrides")
    file(MAKE_DIRECTORY "${folder}/share/lintian/overrides")
    configure_file("${CPACK_LOCKSTEP_SOURCE}/packaging/deb/${package}.lintian-overrides"
      "${folder}/share/lintian/overrides/${package}" COPYONLY)
  endif()
  # umask of whoever builds.
  execute_process(COMMAND chmod -R u=rwX,go=rX "${folder}" COMMAND_ERROR_IS_FATAL ANY)
endforeach()

# Static libraries, without symbols that only a debugger needs.
file(GLOB libraries "${library}/lib/*.a" "${library}/lib/*/*.a")
execute_process(COMMAND strip --strip-debug --remove-section=.comment --enable-deterministic-archives ${libraries}
  COMMAND_ERROR_IS_FATAL ANY)
