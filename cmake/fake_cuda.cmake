# The GPU half on a CUDA runtime without a GPU (tests/fake_cuda): for tests only, and only where
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

# The GPU half as it is shipped, but for the kernels' launches.
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
