# find_package(cadre 0.4 REQUIRED)                      cadre::runtime
# find_package(cadre 0.4 REQUIRED COMPONENTS torch)     and cadre::torch, the adapter for libtorch
#
# Where libtorch is: see cadreTorch.cmake.

# The archive has lib/cmake/cadre, Debian lib/ARCHITECTURE/cmake/cadre.
get_filename_component(_cadre_libraries "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
foreach(_cadre_up ".." "../..")
  get_filename_component(_cadre_prefix "${_cadre_libraries}/${_cadre_up}" ABSOLUTE)
  if(EXISTS "${_cadre_prefix}/include/cadre/connect.h")
    break()
  endif()
endforeach()

include(CMakeFindDependencyMacro)
find_dependency(Threads)

if(NOT TARGET cadre::runtime)
  add_library(cadre::runtime SHARED IMPORTED)
  set_target_properties(cadre::runtime PROPERTIES
    IMPORTED_LOCATION "${_cadre_libraries}/libcadre.so.0"
    IMPORTED_SONAME libcadre.so.0
    INTERFACE_INCLUDE_DIRECTORIES "${_cadre_prefix}/include"
    INTERFACE_COMPILE_FEATURES cxx_std_17
    INTERFACE_LINK_LIBRARIES Threads::Threads
    # What the library itself is linked to lies beside it, or is the machine's: the linker need not look for it.
    INTERFACE_LINK_OPTIONS LINKER:--allow-shlib-undefined)
endif()

foreach(_cadre_component IN LISTS cadre_FIND_COMPONENTS)
  if(_cadre_component STREQUAL "torch")
    include("${CMAKE_CURRENT_LIST_DIR}/cadreTorch.cmake")
  else()
    set(cadre_${_cadre_component}_FOUND FALSE)
    set(_cadre_problem "there is no component \"${_cadre_component}\"; the one there is: torch")
  endif()
  if(NOT cadre_${_cadre_component}_FOUND AND cadre_FIND_REQUIRED_${_cadre_component})
    set(cadre_FOUND FALSE)
    set(cadre_NOT_FOUND_MESSAGE "${_cadre_problem}")
  endif()
endforeach()
