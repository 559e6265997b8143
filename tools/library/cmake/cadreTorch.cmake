# cadre::torch: the adapter for libtorch, compiled here against the libtorch that is found here, because libtorch's C++ ABI
# changes with every version. Sets cadre_torch_FOUND, or _cadre_problem to why not.
#
# libtorch is looked for, first found first taken, in
#   Torch_DIR, CMAKE_PREFIX_PATH   what `python -c "import torch; print(torch.utils.cmake_prefix_path)"` prints, or the
#                                  folder of a libtorch that was downloaded
#   python3's package torch        of the virtual environment that is active; cadre_PYTHON names another interpreter
#   the system                     Debian's libtorch-dev
# It is taken by file names and not by find_package(Torch): that one wants a CUDA toolkit for a CUDA build, although nothing
# of it is needed to link, and where libtorch-dev is installed it may pair one libtorch's headers with the other's libraries.

set(cadre_torch_FOUND FALSE)

# Sets _cadre_torch_include and _cadre_torch_lib where FOLDER is the root of a libtorch, or where Debian's, whose headers and
# libraries lie apart, has its libraries there.
function(_cadre_look_into folder)
  foreach(_cadre_pair "include:lib" "../../include:.")
    string(REGEX REPLACE ":.*" "" _cadre_headers "${_cadre_pair}")
    string(REGEX REPLACE ".*:" "" _cadre_libs "${_cadre_pair}")
    get_filename_component(_cadre_headers "${folder}/${_cadre_headers}" ABSOLUTE)
    get_filename_component(_cadre_libs "${folder}/${_cadre_libs}" ABSOLUTE)
    if(EXISTS "${_cadre_headers}/torch/csrc/api/include/torch/torch.h" AND EXISTS "${_cadre_libs}/libtorch_cpu.so")
      set(_cadre_torch_include "${_cadre_headers}" PARENT_SCOPE)
      set(_cadre_torch_lib "${_cadre_libs}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# 1. Where the project says.
set(_cadre_torch_include "")
set(_cadre_said ${Torch_DIR} $ENV{Torch_DIR})
string(REPLACE ":" ";" _cadre_prefixes "$ENV{CMAKE_PREFIX_PATH}")
foreach(_cadre_folder IN LISTS _cadre_said CMAKE_PREFIX_PATH _cadre_prefixes)
  # share/cmake/Torch, share/cmake, and the root itself.
  foreach(_cadre_up "../../.." "../.." ".")
    if(NOT _cadre_torch_include)
      get_filename_component(_cadre_root "${_cadre_folder}/${_cadre_up}" ABSOLUTE)
      _cadre_look_into("${_cadre_root}")
    endif()
  endforeach()
endforeach()
if(_cadre_said AND NOT _cadre_torch_include)
  set(_cadre_problem "there is no libtorch in Torch_DIR=${_cadre_said}: expected the folder that holds TorchConfig.cmake, as python -c \"import torch; print(torch.utils.cmake_prefix_path)\" prints it, and /Torch")
  return()
endif()

# 2. The package of the interpreter; it is not imported, which takes seconds.
if(NOT _cadre_torch_include)
  find_program(cadre_PYTHON NAMES python3 python DOC "the Python whose PyTorch is taken")
  if(cadre_PYTHON)
    execute_process(
      COMMAND "${cadre_PYTHON}" -c
        "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE _cadre_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(_cadre_root)
      _cadre_look_into("${_cadre_root}")
    endif()
  endif()
endif()

# 3. The system's.
if(NOT _cadre_torch_include)
  find_path(cadre_SYSTEM_TORCH_INCLUDE torch/csrc/api/include/torch/torch.h PATHS /usr/include NO_DEFAULT_PATH)
  find_library(cadre_SYSTEM_TORCH_LIBRARY torch_cpu PATHS /usr/lib /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE} NO_DEFAULT_PATH)
  mark_as_advanced(cadre_SYSTEM_TORCH_INCLUDE cadre_SYSTEM_TORCH_LIBRARY)
  if(cadre_SYSTEM_TORCH_INCLUDE AND cadre_SYSTEM_TORCH_LIBRARY)
    set(_cadre_torch_include "${cadre_SYSTEM_TORCH_INCLUDE}")
    get_filename_component(_cadre_torch_lib "${cadre_SYSTEM_TORCH_LIBRARY}" DIRECTORY)
  endif()
endif()
if(NOT _cadre_torch_include)
  set(_cadre_problem "component torch needs libtorch: activate the virtual environment that has PyTorch, or give its folder in Torch_DIR, or apt-get install libtorch-dev")
  return()
endif()

# Its version: the header has moved over the years.
set(cadre_TORCH_VERSION "")
foreach(_cadre_header torch/headeronly/version.h torch/csrc/api/include/torch/version.h torch/version.h)
  if(NOT cadre_TORCH_VERSION AND EXISTS "${_cadre_torch_include}/${_cadre_header}")
    file(STRINGS "${_cadre_torch_include}/${_cadre_header}" _cadre_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
    string(REGEX MATCHALL "[0-9]+" _cadre_numbers "${_cadre_lines}")
    string(REPLACE ";" "." cadre_TORCH_VERSION "${_cadre_numbers}")
  endif()
endforeach()
set(_cadre_found "libtorch ${cadre_TORCH_VERSION} in ${_cadre_torch_lib}")
if(NOT cadre_TORCH_VERSION OR cadre_TORCH_VERSION VERSION_LESS 1.13)
  set(_cadre_problem "${_cadre_found} cannot be used: expected 1.13 or newer")
  return()
endif()

# Names of the old ABI have no __cxx11 in them; a program of both kinds does not link, or worse.
file(STRINGS "${_cadre_torch_lib}/libc10.so" _cadre_new_abi LIMIT_COUNT 1 REGEX "cxx11")
if(NOT _cadre_new_abi)
  set(_cadre_problem "${_cadre_found} was built for the old C++ ABI (_GLIBCXX_USE_CXX11_ABI=0), which the runtime does not have: take PyTorch 2.7 or newer, or a libtorch whose name says cxx11-abi")
  return()
endif()

# What find_package(Torch) found may be another one.
if(TORCH_LIBRARY AND NOT TORCH_LIBRARY MATCHES "^\\$")
  get_filename_component(_cadre_other "${TORCH_LIBRARY}" REALPATH)
  get_filename_component(_cadre_other "${_cadre_other}" DIRECTORY)
  get_filename_component(_cadre_own "${_cadre_torch_lib}" REALPATH)
  if(NOT _cadre_other STREQUAL _cadre_own)
    set(_cadre_problem "two libtorch: find_package(Torch) has found the one in ${_cadre_other}, and meant is ${_cadre_found}: leave find_package(Torch) out, cadre::torch brings libtorch along")
    return()
  endif()
endif()

# The standard that its headers ask for.
set(_cadre_standard cxx_std_17)
file(STRINGS "${_cadre_torch_include}/torch/csrc/api/include/torch/all.h" _cadre_asks REGEX "#error C\\+\\+20")
if(_cadre_asks)
  set(_cadre_standard cxx_std_20)
endif()

if(NOT TARGET cadre::libtorch)
  set(_cadre_torch_libraries "${_cadre_torch_lib}/libtorch_cpu.so" "${_cadre_torch_lib}/libc10.so")
  add_library(cadre::libtorch INTERFACE IMPORTED)
  set_target_properties(cadre::libtorch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_cadre_torch_include};${_cadre_torch_include}/torch/csrc/api/include"
    INTERFACE_COMPILE_FEATURES ${_cadre_standard}
    # Operators of a CUDA build register themselves when libtorch.so brings them into the process: nothing names them.
    INTERFACE_LINK_LIBRARIES "-Wl,--push-state,--no-as-needed;${_cadre_torch_lib}/libtorch.so;-Wl,--pop-state;${_cadre_torch_libraries}"
    INTERFACE_LINK_OPTIONS LINKER:--allow-shlib-undefined)
endif()

if(NOT TARGET cadre_torch_adapter)
  file(GLOB _cadre_sources "${_cadre_prefix}/share/cadre/torch/*.cc")
  # One unit: libtorch's headers take most of the time, and are read once.
  add_library(cadre_torch_adapter STATIC EXCLUDE_FROM_ALL ${_cadre_sources})
  set_target_properties(cadre_torch_adapter PROPERTIES
    POSITION_INDEPENDENT_CODE ON UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0 CXX_EXTENSIONS OFF)
  # Headers that only its sources include.
  target_include_directories(cadre_torch_adapter PRIVATE "${_cadre_prefix}/share/cadre/torch")
  target_link_libraries(cadre_torch_adapter PUBLIC cadre::runtime cadre::libtorch)
  add_library(cadre::torch ALIAS cadre_torch_adapter)
endif()
if(NOT cadre_FIND_QUIETLY)
  message(STATUS "cadre::torch: ${_cadre_found}")
endif()
set(cadre_torch_FOUND TRUE)
