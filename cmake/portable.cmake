# For wheels: the compiler of a later system builds a library that loads wherever MXNet 1.9.1's wheels
# load (manylinux2014: glibc 2.17 and the libstdc++ of GCC 4.8). The library must use the shared
# libstdc++ of the process, because exceptions pass between it and libmxnet. So it cannot use newer
# symbols: flags avoid some, symbol_versions.txt has older versions of others, and newer_libstdcxx.cc
# defines the rest. auditwheel checks the result (scripts/build_wheels.sh).

option(GLUON_SYNCBN_PORTABLE "Build for every system that MXNet 1.9.1's wheels run on" OFF)
if(NOT GLUON_SYNCBN_PORTABLE)
  return()
endif()
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  message(FATAL_ERROR "GLUON_SYNCBN_PORTABLE knows x86-64 only, not ${CMAKE_SYSTEM_PROCESSOR}")
endif()

set(portable_folder "${CMAKE_CURRENT_SOURCE_DIR}/cmake/portable")
set(portable_build "${CMAKE_CURRENT_BINARY_DIR}/portable")
file(STRINGS "${portable_folder}/symbol_versions.txt" lines REGEX "^[^#]")
# Without this macro, condition_variable waits on the steady clock in a loop, as older versions did.
set(header "#include <bits/c++config.h>\n#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT\n")
set(renames "")
foreach(line IN LISTS lines)
  string(REPLACE " " "@" versioned "${line}")
  string(REGEX REPLACE " .*" "" symbol "${line}")
  string(APPEND header "__asm__(\".symver ${symbol},${versioned}\");\n")
  string(APPEND renames "${symbol} ${versioned}\n")
endforeach()
file(CONFIGURE OUTPUT "${portable_build}/portable.h" CONTENT "${header}" @ONLY)
file(CONFIGURE OUTPUT "${portable_build}/renames.txt" CONTENT "${renames}" @ONLY)

# The strings of GCC 4.8, whose ABI differs. No string passes between this library and others.
target_compile_definitions(gluon_syncbn_flags INTERFACE _GLIBCXX_USE_CXX11_ABI=0)
target_compile_options(gluon_syncbn_flags INTERFACE
                       "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-include ${portable_build}/portable.h>"
                       $<$<COMPILE_LANGUAGE:CXX>:-fno-sized-deallocation>)

# Makes the shared library `target` portable. It must not export the functions of newer_libstdcxx.cc.
# Before glibc 2.34, threads and dlopen were in libraries of their own.
function(make_portable target)
  target_sources(${target} PRIVATE "${portable_folder}/newer_libstdcxx.cc")
  target_link_options(
    ${target} PRIVATE
    "SHELL:LINKER:--push-state,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -l:librt.so.1"
    LINKER:--pop-state)
endfunction()
