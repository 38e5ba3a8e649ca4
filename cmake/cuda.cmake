# The GPU backend. GLUON_SYNCBN_CUDA asks for it, and GLUON_SYNCBN_WITH_CUDA then says whether it is
# built. For "pip install", the environment may set the user's variables.

set(oldest_cuda 11.2)
include("${CMAKE_CURRENT_LIST_DIR}/gpu_architectures.cmake")

set(default AUTO)
if(DEFINED ENV{GLUON_SYNCBN_CUDA})
  set(default "$ENV{GLUON_SYNCBN_CUDA}")
endif()
set(GLUON_SYNCBN_CUDA "${default}" CACHE STRING
    "GPU contexts: ON, OFF, or AUTO (for the GPUs that are here, where a CUDA compiler works)")
set(GLUON_SYNCBN_CUDA_ARCHITECTURES "$ENV{GLUON_SYNCBN_CUDA_ARCHITECTURES}" CACHE STRING
    "As CMake's CUDA_ARCHITECTURES; empty for the GPUs that are here, and with ON for all from \
sm_${oldest_architecture} on")
if(NOT GLUON_SYNCBN_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "GLUON_SYNCBN_CUDA is '${GLUON_SYNCBN_CUDA}': expected AUTO, ON or OFF")
endif()
# Compiling for all takes minutes. Wheels are for other machines.
set(for_gpus_here OFF)
if(GLUON_SYNCBN_CUDA STREQUAL "AUTO" AND NOT GLUON_SYNCBN_CUDA_ARCHITECTURES
   AND NOT GLUON_SYNCBN_PORTABLE)
  set(for_gpus_here ON)
endif()

# Sets GLUON_SYNCBN_WITH_CUDA to OFF, or fails if GLUON_SYNCBN_CUDA is ON.
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
  if(for_gpus_here)
    find_gpus_here(gpus_here)
    if(NOT gpus_here)
      cuda_is_off("because no GPU is here; GLUON_SYNCBN_CUDA=ON builds for all GPUs, \
GLUON_SYNCBN_CUDA_ARCHITECTURES for those that it lists")
      return()
    endif()
  endif()
  # CMake needs an architecture before it tries the compiler. The targets get theirs below.
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
  if(for_gpus_here)
    architectures_for(GLUON_SYNCBN_CUDA_ARCHITECTURES "${known}" "${gpus_here}")
  else()
    architectures_for_all(GLUON_SYNCBN_CUDA_ARCHITECTURES "${known}")
  endif()
  if(NOT GLUON_SYNCBN_CUDA_ARCHITECTURES)
    list(TRANSFORM gpus_here REPLACE "(.)$" ".\\1")
    list(JOIN gpus_here ", " gpus_here)
    cuda_is_off("because CUDA ${CMAKE_CUDA_COMPILER_VERSION} has no code for the GPUs that are here \
(compute capability ${gpus_here})")
    return()
  endif()
endif()
message(STATUS "GPU contexts: CUDA ${CMAKE_CUDA_COMPILER_VERSION}, "
               "architectures ${GLUON_SYNCBN_CUDA_ARCHITECTURES}")

set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
