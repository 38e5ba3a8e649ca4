# A CUDA runtime without a GPU (tests/fake_cuda), for the native tests. If
# GLUON_SYNCBN_FAKE_CUDA_LIBMXNET names the real MXNet for CUDA, MXNet can run on it too.

set(GLUON_SYNCBN_FAKE_CUDA_LIBMXNET "" CACHE FILEPATH
    "libmxnet.so of a package for CUDA 11, to run on the fake CUDA; empty: none")

set(fake_cuda_folder "${CMAKE_CURRENT_SOURCE_DIR}/tests/fake_cuda")
file(GLOB fake_driver CONFIGURE_DEPENDS "${fake_cuda_folder}/*.cc")
file(GLOB fake_runtime CONFIGURE_DEPENDS "${fake_cuda_folder}/runtime/*.cc")
add_library(fake_cuda SHARED ${fake_driver} ${fake_runtime})
# libmxnet.so looks for this name, and for symbols of this version.
set_target_properties(fake_cuda PROPERTIES OUTPUT_NAME cudart SUFFIX .so.11.0
                                           CXX_VISIBILITY_PRESET default
                                           LINK_DEPENDS "${fake_cuda_folder}/exports.map")
target_include_directories(fake_cuda PRIVATE "${fake_cuda_folder}")
target_include_directories(fake_cuda SYSTEM PUBLIC "${fake_cuda_folder}/include")
target_link_libraries(fake_cuda PRIVATE gluon_syncbn_flags)
target_link_options(fake_cuda PRIVATE "LINKER:--version-script=${fake_cuda_folder}/exports.map")

# The library's own runtime, which it has beside that of MXNet.
add_library(fake_own_runtime OBJECT ${fake_runtime})
target_include_directories(fake_own_runtime PRIVATE "${fake_cuda_folder}")
target_link_libraries(fake_own_runtime PRIVATE gluon_syncbn_flags fake_cuda)

# The GPU backend as it is shipped, except that kernels run on the CPU. Their sources take longest to
# compile, and are fast enough with few optimizations.
set(lockstep_folder "${CMAKE_CURRENT_SOURCE_DIR}/tests/native/emulation")
file(GLOB lockstep_sources CONFIGURE_DEPENDS "${lockstep_folder}/*.cc")
set_source_files_properties(${lockstep_sources} PROPERTIES COMPILE_OPTIONS -O1)
add_library(cuda_on_fake OBJECT ${lockstep_sources} "${cuda_folder}/runtime.cc")
target_include_directories(cuda_on_fake PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/tests"
                                                "${CMAKE_CURRENT_SOURCE_DIR}/tests/native")
target_link_libraries(cuda_on_fake PUBLIC gluon_syncbn_flags fake_cuda)
set(fake_cuda_objects $<TARGET_OBJECTS:cuda_on_fake> $<TARGET_OBJECTS:fake_own_runtime>
                      $<TARGET_OBJECTS:gluon_syncbn_cuda_host>)

if(NOT GLUON_SYNCBN_FAKE_CUDA_LIBMXNET)
  return()
endif()

# The kernels of MXNet, and the functions of CUDA's libraries that it needs, most of which do nothing.
file(GLOB fake_kernels CONFIGURE_DEPENDS "${fake_cuda_folder}/kernels/*.cc")
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
target_sources(fake_cuda PRIVATE ${fake_kernels} "${fake_cuda_folder}/nvrtc/module.cc"
                                 "${generated}/libcudart.so.11.0.c")
target_link_libraries(fake_cuda PRIVATE ${CMAKE_DL_LIBS})
set_target_properties(fake_cuda PROPERTIES C_VISIBILITY_PRESET default)
add_custom_target(fake_cuda_libraries DEPENDS fake_cuda gluon_syncbn_on_fake)
foreach(soname IN LISTS sonames)
  string(REGEX MATCH "^lib([A-Za-z-]+)(.*)$" _ "${soname}")
  set(target "fake_lib${CMAKE_MATCH_1}")
  add_library(${target} SHARED "${generated}/${soname}.c")
  set_target_properties(${target} PROPERTIES OUTPUT_NAME "${CMAKE_MATCH_1}"
                                             SUFFIX "${CMAKE_MATCH_2}"
                                             C_VISIBILITY_PRESET default)
  target_link_options(${target} PRIVATE "LINKER:--version-script=${generated}/${soname}.map")
  add_dependencies(fake_cuda_libraries ${target})
endforeach()
# A compiler at run time needs a compiler.
target_sources(fake_libnvrtc PRIVATE "${fake_cuda_folder}/nvrtc/nvrtc.cc")
set_target_properties(fake_libnvrtc PROPERTIES CXX_VISIBILITY_PRESET default)
target_include_directories(fake_libnvrtc PRIVATE "${fake_cuda_folder}"
                                                 "${fake_cuda_folder}/include")
target_link_libraries(fake_libnvrtc PRIVATE gluon_syncbn_flags)
target_compile_definitions(fake_libnvrtc PRIVATE
  FAKE_CUDA_COMPILER="${CMAKE_CXX_COMPILER}" FAKE_CUDA_ROOT="${CMAKE_CURRENT_SOURCE_DIR}"
  FAKE_CUDA_COMPILED="${CMAKE_CURRENT_BINARY_DIR}/compiled_kernels")
# MXNet looks up functions of the driver in libcuda.so, and finds those of the fake runtime there.
target_link_libraries(fake_libcuda PRIVATE -Wl,--no-as-needed fake_cuda)

# The whole library, for MXNet on the fake.
add_library(gluon_syncbn_on_fake SHARED ${mxnet_sources} $<TARGET_OBJECTS:gluon_syncbn_core>
                                        ${fake_cuda_objects})
target_compile_definitions(gluon_syncbn_on_fake PRIVATE GLUON_SYNCBN_CUDA="fake")
target_link_libraries(gluon_syncbn_on_fake PRIVATE gluon_syncbn_flags fake_cuda ${CMAKE_DL_LIBS})
