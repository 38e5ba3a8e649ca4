# A CUDA driver and NVRTC without a GPU (tests/gpu/fake_cuda), for the native tests. If
# GLUON_SYNCBN_FAKE_CUDA_LIBMXNET names the real MXNet for CUDA, MXNet can run on them too.

set(GLUON_SYNCBN_FAKE_CUDA_LIBMXNET "" CACHE FILEPATH
    "libmxnet.so of a package for CUDA 11, to run on the fake CUDA; empty: none")

set(fake_cuda_folder "${CMAKE_CURRENT_SOURCE_DIR}/tests/gpu/fake_cuda")

# add_fake_library(TARGET NAME SUFFIX SOURCE...): a shared library of the fake.
function(add_fake_library target name suffix)
  add_library(${target} SHARED ${ARGN})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} SUFFIX ${suffix}
                                             LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}"
                                             CXX_VISIBILITY_PRESET default
                                             C_VISIBILITY_PRESET default
                                             UNITY_BUILD ON)
  target_include_directories(${target} PRIVATE "${fake_cuda_folder}"
                                               "${CMAKE_CURRENT_SOURCE_DIR}/tests/gpu")
  target_include_directories(${target} SYSTEM PUBLIC "${fake_cuda_folder}/include")
  target_link_libraries(${target} PRIVATE gluon_syncbn_flags)
endfunction()

# The driver, with the kernels of the library, which run on the CPU. Their sources take longest to
# compile, and are fast enough with few optimizations.
file(GLOB fake_driver CONFIGURE_DEPENDS "${fake_cuda_folder}/*.cc" "${fake_cuda_folder}/driver/*.cc"
                                        "${fake_cuda_folder}/ptx/*.cc")
file(GLOB emulation CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/tests/gpu/emulation/*.cc")
set_source_files_properties(${emulation} PROPERTIES COMPILE_OPTIONS -O1)
add_fake_library(fake_cuda cuda .so.1 ${fake_driver} ${emulation})
set_source_files_properties("${fake_cuda_folder}/ptx/instructions.cc"
                            PROPERTIES COMPILE_OPTIONS -frounding-math)
# GCC 12 warns of its own std::regex under the address sanitizer (GCC's bug 105562).
set_source_files_properties("${fake_cuda_folder}/ptx/parse.cc"
                            PROPERTIES COMPILE_OPTIONS -Wno-maybe-uninitialized)
target_link_libraries(fake_cuda PRIVATE ${CMAKE_DL_LIBS})
target_link_options(fake_cuda PRIVATE "LINKER:--version-script=${fake_cuda_folder}/exports.map")
set_target_properties(fake_cuda PROPERTIES LINK_DEPENDS "${fake_cuda_folder}/exports.map")

# For kernels of MXNet it needs a compiler at run time.
add_fake_library(fake_nvrtc nvrtc .so.11.2 "${fake_cuda_folder}/nvrtc/nvrtc.cc")
target_link_libraries(fake_nvrtc PRIVATE fake_cuda)
target_compile_definitions(fake_nvrtc PRIVATE
  FAKE_CUDA_COMPILER="${CMAKE_CXX_COMPILER}" FAKE_CUDA_ROOT="${CMAKE_CURRENT_SOURCE_DIR}"
  FAKE_CUDA_COMPILED="${CMAKE_CURRENT_BINARY_DIR}/compiled_kernels")

if(NOT GLUON_SYNCBN_FAKE_CUDA_LIBMXNET)
  return()
endif()

# The runtime, the kernels of MXNet, and the functions of CUDA's libraries that it needs, most of which
# do nothing.
enable_language(C)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(generated "${CMAKE_CURRENT_BINARY_DIR}/fake_cuda_sources")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${fake_cuda_folder}/libraries.py"
                                                               "${GLUON_SYNCBN_FAKE_CUDA_LIBMXNET}")
execute_process(COMMAND "${Python3_EXECUTABLE}" "${fake_cuda_folder}/libraries.py"
                        "${GLUON_SYNCBN_FAKE_CUDA_LIBMXNET}" "${generated}"
                OUTPUT_VARIABLE sonames RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "libraries.py failed on ${GLUON_SYNCBN_FAKE_CUDA_LIBMXNET}")
endif()
target_sources(fake_cuda PRIVATE "${generated}/libcuda.so.1.c")
file(GLOB fake_runtime CONFIGURE_DEPENDS "${fake_cuda_folder}/runtime/*.cc"
                                         "${fake_cuda_folder}/kernels/*.cc")
add_fake_library(fake_cudart cudart .so.11.0 ${fake_runtime} "${generated}/libcudart.so.11.0.c")
target_link_libraries(fake_cudart PRIVATE fake_cuda)
# libmxnet.so looks for symbols of this version.
target_link_options(fake_cudart PRIVATE
                    "LINKER:--version-script=${fake_cuda_folder}/runtime/exports.map")
add_custom_target(fake_cuda_libraries DEPENDS fake_cudart fake_nvrtc)
foreach(soname IN LISTS sonames)
  if(soname MATCHES "^libnvrtc")
    target_sources(fake_nvrtc PRIVATE "${generated}/${soname}.c")
    target_link_options(fake_nvrtc PRIVATE "LINKER:--version-script=${generated}/${soname}.map")
    continue()
  endif()
  string(REGEX MATCH "^lib([A-Za-z-]+)(.*)$" _ "${soname}")
  set(target "fake_lib${CMAKE_MATCH_1}")
  add_fake_library(${target} "${CMAKE_MATCH_1}" "${CMAKE_MATCH_2}" "${generated}/${soname}.c")
  target_link_options(${target} PRIVATE "LINKER:--version-script=${generated}/${soname}.map")
  add_dependencies(fake_cuda_libraries ${target})
endforeach()
