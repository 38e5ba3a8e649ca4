# The GPU backend on a CUDA runtime without a GPU (tests/fake_cuda): for tests only, and only where
# GLUON_SYNCBN_FAKE_CUDA_HEADERS says where NVIDIA's headers for CUDA 11 are.

set(GLUON_SYNCBN_FAKE_CUDA_HEADERS "" CACHE STRING
    "Folders of cuda_runtime_api.h and crt/host_defines.h of CUDA 11; empty: no fake CUDA runtime")
if(NOT GLUON_SYNCBN_FAKE_CUDA_HEADERS)
  return()
endif()
find_file(fake_cuda_header cuda_runtime_api.h PATHS ${GLUON_SYNCBN_FAKE_CUDA_HEADERS}
          NO_DEFAULT_PATH NO_CACHE)
if(NOT fake_cuda_header)
  message(FATAL_ERROR "GLUON_SYNCBN_FAKE_CUDA_HEADERS is '${GLUON_SYNCBN_FAKE_CUDA_HEADERS}': "
                      "no cuda_runtime_api.h there")
endif()
file(STRINGS "${fake_cuda_header}" version_line REGEX "^#define +CUDART_VERSION +11[0-9]+")
if(NOT version_line)
  message(FATAL_ERROR "${fake_cuda_header} is not that of CUDA 11, which MXNet 1.9.1 is linked to")
endif()

set(fake_cuda_folder "${CMAKE_CURRENT_SOURCE_DIR}/tests/fake_cuda")
file(GLOB fake_cuda_sources CONFIGURE_DEPENDS "${fake_cuda_folder}/*.cc"
                                              "${fake_cuda_folder}/kernels/*.cc")
add_library(fake_cuda SHARED ${fake_cuda_sources})
# By this name, and with this version of its symbols, it serves libmxnet.so too.
set_target_properties(fake_cuda PROPERTIES OUTPUT_NAME cudart SUFFIX .so.11.0
                                           CXX_VISIBILITY_PRESET default
                                           LINK_DEPENDS "${fake_cuda_folder}/exports.map")
target_include_directories(fake_cuda PRIVATE "${fake_cuda_folder}")
target_include_directories(fake_cuda SYSTEM PUBLIC ${GLUON_SYNCBN_FAKE_CUDA_HEADERS})
target_link_libraries(fake_cuda PRIVATE gluon_syncbn_flags)
target_link_options(fake_cuda PRIVATE "LINKER:--version-script=${fake_cuda_folder}/exports.map")

# The other libraries that libmxnet.so needs, by the functions that it leaves to them.
set(GLUON_SYNCBN_FAKE_CUDA_LIBMXNET "" CACHE FILEPATH
    "libmxnet.so of a package for CUDA 11, to run on the fake CUDA; empty: none")
if(GLUON_SYNCBN_FAKE_CUDA_LIBMXNET)
  enable_language(C)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(sonames libcuda.so.1 libcudnn.so.8 libcublas.so.11 libcufft.so.10 libcusolver.so.11
              libcurand.so.10 libnccl.so.2 libnvrtc.so.11.2 libnvToolsExt.so.1)
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/fake_cuda_sources")
  set(generated_files)
  foreach(soname IN LISTS sonames)
    list(APPEND generated_files "${generated}/${soname}.c" "${generated}/${soname}.map")
  endforeach()
  add_custom_command(
    OUTPUT ${generated_files}
    COMMAND "${Python3_EXECUTABLE}" "${fake_cuda_folder}/libraries.py"
            "${GLUON_SYNCBN_FAKE_CUDA_LIBMXNET}" "${generated}"
    DEPENDS "${fake_cuda_folder}/libraries.py" "${GLUON_SYNCBN_FAKE_CUDA_LIBMXNET}" VERBATIM)
  add_custom_target(fake_cuda_sources DEPENDS ${generated_files})
  add_custom_target(fake_cuda_libraries DEPENDS fake_cuda gluon_syncbn_on_fake)
  foreach(soname IN LISTS sonames)
    string(REGEX MATCH "^lib([A-Za-z]+)(.*)$" _ "${soname}")
    set(target "fake_lib${CMAKE_MATCH_1}")
    add_library(${target} SHARED "${generated}/${soname}.c")
    set_target_properties(${target} PROPERTIES OUTPUT_NAME "${CMAKE_MATCH_1}"
                                               SUFFIX "${CMAKE_MATCH_2}"
                                               C_VISIBILITY_PRESET default
                                               CXX_VISIBILITY_PRESET default)
    add_dependencies(${target} fake_cuda_sources)
    target_link_options(${target} PRIVATE "LINKER:--version-script=${generated}/${soname}.map")
    add_dependencies(fake_cuda_libraries ${target})
  endforeach()
  # What networks need of two of them is computed.
  foreach(library cudnn cublas)
    file(GLOB sources CONFIGURE_DEPENDS "${fake_cuda_folder}/libraries/${library}/*.cc")
    target_sources(fake_lib${library} PRIVATE ${sources} "${fake_cuda_folder}/kernels/values.cc"
                                              "${fake_cuda_folder}/kernels/name.cc")
    target_include_directories(fake_lib${library} PRIVATE "${fake_cuda_folder}")
    target_link_libraries(fake_lib${library} PRIVATE gluon_syncbn_flags fake_cuda)
  endforeach()
  # Who asks the driver for the calls that the fake runtime has finds them there.
  target_link_libraries(fake_libcuda PRIVATE -Wl,--no-as-needed fake_cuda)
endif()

# The GPU backend as it is shipped, but for the kernels' launches.
add_library(cuda_on_fake OBJECT
            "${cuda_folder}/runtime.cc"
            "${CMAKE_CURRENT_SOURCE_DIR}/tests/native/fake_cuda/launch.cc")
target_include_directories(cuda_on_fake PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/tests"
                                                "${CMAKE_CURRENT_SOURCE_DIR}/tests/native")
target_link_libraries(cuda_on_fake PUBLIC gluon_syncbn_flags fake_cuda)
set(fake_cuda_objects $<TARGET_OBJECTS:cuda_on_fake> $<TARGET_OBJECTS:gluon_syncbn_cuda_host>)

# The whole library, for MXNet on the fake.
add_library(gluon_syncbn_on_fake SHARED ${mxnet_sources} $<TARGET_OBJECTS:gluon_syncbn_core>
                                        ${fake_cuda_objects})
target_compile_definitions(gluon_syncbn_on_fake PRIVATE GLUON_SYNCBN_CUDA="fake")
target_link_libraries(gluon_syncbn_on_fake PRIVATE gluon_syncbn_flags fake_cuda ${CMAKE_DL_LIBS})
