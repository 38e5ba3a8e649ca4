# Puts the headers of the kernels into the library, for NVRTC.

set(headers
    common/dtype.h common/half.h common/inline.h norm/activation.h norm/coefficients.h
    norm/invertible.h norm/merge_weight.h norm/per_channel.h norm/variants.h)
file(GLOB of_kernels RELATIVE "${src}" CONFIGURE_DEPENDS "${src}/cuda/kernels/*.h")
list(APPEND headers ${of_kernels})

set(texts "")
foreach(path IN LISTS headers)
  file(READ "${src}/${path}" text)
  string(APPEND texts "    {\"${path}\", R\"===(${text})===\"},\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${src}/${path}")
endforeach()
foreach(name cmath cstddef cstdint cstring limits string type_traits)
  string(APPEND texts "    {\"${name}\", \"#include \\\"cuda/kernels/standard.h\\\"\\n\"},\n")
endforeach()
set(kernel_headers "${CMAKE_CURRENT_BINARY_DIR}/kernel_headers.cc")
configure_file("${src}/cuda/kernel_headers.cc.in" "${kernel_headers}" @ONLY)
