# The GPUs for which the kernels are compiled. An architecture is a number such as 86 in compute_86.

set(oldest_architecture 50)

# Sets `chosen` to those of the architectures `known` to the compiler that serve these `gpus`. A GPU that
# is older than all of them gets none. Code for an architecture runs on later ones of its generation,
# and the driver compiles its PTX for later generations.
function(architectures_for chosen known gpus)
  set(architectures)
  foreach(gpu IN LISTS gpus)
    set(best 0)
    foreach(architecture IN LISTS known)
      if(architecture LESS_EQUAL gpu AND architecture GREATER best)
        set(best "${architecture}")
      endif()
    endforeach()
    math(EXPR generation "${gpu} / 10")
    math(EXPR generation_of_best "${best} / 10")
    if(generation_of_best EQUAL generation)
      list(APPEND architectures "${best}-real")
    elseif(best GREATER 0)
      list(APPEND architectures "${best}-virtual")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES architectures)
  list(SORT architectures COMPARE NATURAL)
  set(${chosen} "${architectures}" PARENT_SCOPE)
endfunction()

# Sets `chosen` to architectures for all GPUs: the first `known` one of each generation from
# `oldest_architecture` on, common later ones, for which the compiler makes better code, and PTX of
# the newest for later GPUs. scripts/build_wheels.sh has a shorter list for CUDA 11.
function(architectures_for_all chosen known)
  set(architectures)
  set(generation_before 0)
  foreach(architecture IN LISTS known)
    math(EXPR generation "${architecture} / 10")
    if(architecture LESS oldest_architecture)
      continue()
    endif()
    if(generation GREATER generation_before OR architecture MATCHES "^(75|86|89)$")
      list(APPEND architectures "${architecture}-real")
    endif()
    set(generation_before "${generation}")
    set(newest "${architecture}")
  endforeach()
  list(APPEND architectures "${newest}-virtual")
  set(${chosen} "${architectures}" PARENT_SCOPE)
endfunction()

# Sets `found` to the compute capabilities of the GPUs of this machine; empty if there are none.
function(find_gpus_here found)
  try_run(status compiled "${CMAKE_CURRENT_BINARY_DIR}/gpus_here"
          "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/gpus_here.cc"
          LINK_LIBRARIES ${CMAKE_DL_LIBS}
          COMPILE_OUTPUT_VARIABLE log RUN_OUTPUT_VARIABLE gpus)
  if(NOT compiled OR NOT status EQUAL 0)
    message(WARNING "GPU contexts: the driver could not be asked for GPUs: ${log}${gpus}")
    set(gpus "")
  endif()
  set(${found} "${gpus}" PARENT_SCOPE)
endfunction()
