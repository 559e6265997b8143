# What the CMakeLists.txt of each example includes: the library, PyTorch, and add_example().
#
# PyTorch is that of the virtual environment that is active, else the system's; -DTorch_DIR=FOLDER names another. Away from the archive
# -DCMAKE_PREFIX_PATH=/path/to/cadre-0.4.0 says where the library is, where it is not installed.
if(COMMAND add_example)
  return()
endif()
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_EXTENSIONS OFF)

# In an unpacked archive the library lies beside the folder of all examples.
list(APPEND CMAKE_PREFIX_PATH "${CMAKE_CURRENT_LIST_DIR}/.." "${CMAKE_CURRENT_LIST_DIR}/../..")
find_package(cadre 0.4 REQUIRED OPTIONAL_COMPONENTS torch)
# Flags: CLI11's headers, Debian's libcli11-dev or those that the archive brings.
find_path(CLI11_INCLUDE CLI/CLI.hpp HINTS "${CMAKE_CURRENT_LIST_DIR}/third_party" "${cadre_DIR}/../../../examples/third_party")

# add_example(NAME SOURCE...): a program with libtorch. What it shares with others lies in its folder, or beside that in a checkout.
function(add_example name)
  if(NOT cadre_torch_FOUND OR NOT CLI11_INCLUDE)
    message(FATAL_ERROR "${name} needs PyTorch and CLI11: activate a virtual environment with PyTorch, or give Torch_DIR; CLI11 is libcli11-dev")
  endif()
  set(sources)
  foreach(source ${ARGN})
    if(NOT EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${source}")
      set(source "../${source}")
    endif()
    list(APPEND sources "${source}")
  endforeach()
  add_executable(${name} ${sources})
  # From within the one that is in this folder, "../flags/flags.h" is in this folder, too.
  target_include_directories(${name} PRIVATE "${CLI11_INCLUDE}" "${CMAKE_CURRENT_SOURCE_DIR}/exceptions")
  target_link_libraries(${name} cadre::torch)
endfunction()
