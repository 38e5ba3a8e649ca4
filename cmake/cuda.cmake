# The GPU backend: GLUON_SYNCBN_CUDA says whether to build it, GLUON_SYNCBN_WITH_CUDA then whether it
# is built. Both variables of a user may also come from the environment, for "pip install".

set(default AUTO)
if(DEFINED ENV{GLUON_SYNCBN_CUDA})
  set(default "$ENV{GLUON_SYNCBN_CUDA}")
endif()
set(GLUON_SYNCBN_CUDA "${default}" CACHE STRING
    "GPU contexts: ON, OFF, or AUTO (where a CUDA compiler works)")
set(GLUON_SYNCBN_CUDA_ARCHITECTURES "$ENV{GLUON_SYNCBN_CUDA_ARCHITECTURES}" CACHE STRING
    "As CMake's CUDA_ARCHITECTURES; empty for all that the compiler knows, from sm_50 on")
if(NOT GLUON_SYNCBN_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "GLUON_SYNCBN_CUDA is '${GLUON_SYNCBN_CUDA}': expected AUTO, ON or OFF")
endif()
set(oldest_cuda 11.2)

# Sets GLUON_SYNCBN_WITH_CUDA to OFF, or fails where ON was asked for.
function(cuda_is_off reason)
  if(GLUON_SYNCBN_CUDA STREQUAL "ON")
    message(FATAL_ERROR "GLUON_SYNCBN_CUDA is ON, but ${reason}")
  endif()
  message(STATUS "GPU contexts: not built, ${reason}")
  set(GLUON_SYNCBN_WITH_CUDA OFF PARENT_SCOPE)
endfunction()

set(GLUON_SYNCBN_WITH_CUDA ON)
if(GLUON_SYNCBN_CUDA STREQUAL "OFF")
  cuda_is_off("as GLUON_SYNCBN_CUDA says")
elseif(sanitizers)
  cuda_is_off("because sanitizers are on")
else()
  # Of no consequence for what is built here, but CMake wants to know before it tries the compiler.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES OFF)
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    cuda_is_off("because no CUDA compiler was found that works (nvcc; see CUDACXX, CUDAHOSTCXX)")
  else()
    enable_language(CUDA)
    find_package(CUDAToolkit)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS oldest_cuda)
      cuda_is_off("because CUDA ${CMAKE_CUDA_COMPILER_VERSION} is older than ${oldest_cuda}")
    elseif(NOT TARGET CUDA::cudart_static)
      cuda_is_off("because libcudart_static.a was not found")
    endif()
  endif()
endif()
if(NOT GLUON_SYNCBN_WITH_CUDA)
  return()
endif()

# Code for one architecture runs on later ones of its generation. So the first of each generation
# will do, with the common later ones for what the compiler makes better there, and PTX of the
# newest for GPUs to come.
if(NOT GLUON_SYNCBN_CUDA_ARCHITECTURES)
  execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --list-gpu-arch OUTPUT_VARIABLE known
                  RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "'${CMAKE_CUDA_COMPILER} --list-gpu-arch' failed; "
                        "set GLUON_SYNCBN_CUDA_ARCHITECTURES")
  endif()
  string(REGEX MATCHALL "compute_[0-9]+" known "${known}")
  list(TRANSFORM known REPLACE "compute_" "")
  list(SORT known COMPARE NATURAL)
  set(architectures)
  set(generation_before 0)
  foreach(architecture IN LISTS known)
    math(EXPR generation "${architecture} / 10")
    if(architecture LESS 50)
      continue()
    endif()
    if(generation GREATER generation_before OR architecture MATCHES "^(75|86|89)$")
      list(APPEND architectures "${architecture}-real")
    endif()
    set(generation_before "${generation}")
    set(newest "${architecture}")
  endforeach()
  list(APPEND architectures "${newest}-virtual")
  set(GLUON_SYNCBN_CUDA_ARCHITECTURES "${architectures}")
endif()
message(STATUS "GPU contexts: CUDA ${CMAKE_CUDA_COMPILER_VERSION}, "
               "architectures ${GLUON_SYNCBN_CUDA_ARCHITECTURES}")

set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
