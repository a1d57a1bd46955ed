# How a folder declares its library, its tests and its programs.
include(GNUInstallDirs)
include(GoogleTest)

# berth_precompile(NAME LIBS … HEADERS …): the precompiled headers berth_pch_NAME and berth_pch_NAME_test, of
# pch.h and HEADERS, the second with GoogleTest's too. Whatever of ours is declared from here on uses them:
# these headers cost seconds a file.
function(berth_precompile name)
  cmake_parse_arguments(ARG "" "" "LIBS;HEADERS" ${ARGN})
  foreach(target berth_pch_${name} berth_pch_${name}_test)
    add_library(${target} OBJECT "${PROJECT_SOURCE_DIR}/cmake/pch.cc")
    target_link_libraries(${target} PUBLIC berth_options Boost::boost PkgConfig::grpcpp spdlog::spdlog
      protobuf::libprotobuf Threads::Threads ${ARG_LIBS})
    target_precompile_headers(${target} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/pch.h" ${ARG_HEADERS})
  endforeach()
  target_link_libraries(berth_pch_${name}_test PUBLIC GTest::gmock GTest::gtest)
  target_precompile_headers(berth_pch_${name}_test PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
  set_property(GLOBAL PROPERTY BERTH_PCH berth_pch_${name})
endfunction()
berth_precompile(base)

# berth_ours(TARGET [TEST]): our warnings and our precompiled header.
function(berth_ours target)
  cmake_parse_arguments(ARG "TEST" "" "" ${ARGN})
  get_property(pch GLOBAL PROPERTY BERTH_PCH)
  if(ARG_TEST)
    string(APPEND pch _test)
  endif()
  target_link_libraries(${target} PRIVATE berth_options)
  target_precompile_headers(${target} REUSE_FROM ${pch})
endfunction()

# berth_library(NAME SOURCES a.cc … PUBLIC libs… PRIVATE libs…): the library berth_NAME, alias berth::NAME.
function(berth_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(berth_${name} STATIC ${ARG_SOURCES})
  add_library(berth::${name} ALIAS berth_${name})
  target_link_libraries(berth_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  berth_ours(berth_${name})
endfunction()

# Every generated source: what ./dev lint needs before it reads ours.
add_custom_target(berth_generated)

# berth_proto_library(NAME PROTOS x.proto … LIBS … [MESSAGES_ONLY]): generated messages and services, paths from
# the project's root, included as "folder/x.pb.h". Not held to our warnings. MESSAGES_ONLY: there are no
# services.
function(berth_proto_library name)
  cmake_parse_arguments(ARG "MESSAGES_ONLY" "" "PROTOS;LIBS" ${ARGN})
  set(gen "${PROJECT_BINARY_DIR}/gen")
  set(generate "--cpp_out=${gen}")
  set(kinds pb)
  if(NOT ARG_MESSAGES_ONLY)
    list(APPEND generate "--grpc_out=${gen}" "--plugin=protoc-gen-grpc=${GRPC_CPP_PLUGIN}")
    list(APPEND kinds grpc.pb)
  endif()
  set(sources)
  foreach(proto IN LISTS ARG_PROTOS)
    string(REGEX REPLACE "\\.proto$" "" stem "${proto}")
    set(outputs)
    foreach(kind IN LISTS kinds)
      list(APPEND outputs "${gen}/${stem}.${kind}.cc" "${gen}/${stem}.${kind}.h")
      list(APPEND sources "${gen}/${stem}.${kind}.cc")
    endforeach()
    add_custom_command(OUTPUT ${outputs}
      COMMAND "${CMAKE_COMMAND}" -E make_directory "${gen}"
      COMMAND protobuf::protoc "-I${PROJECT_SOURCE_DIR}" ${generate} "${PROJECT_SOURCE_DIR}/${proto}"
      DEPENDS "${PROJECT_SOURCE_DIR}/${proto}" VERBATIM)
  endforeach()
  add_custom_target(berth_${name}_generated DEPENDS ${sources})
  add_dependencies(berth_generated berth_${name}_generated)
  add_library(berth_${name} STATIC ${sources})
  add_library(berth::${name} ALIAS berth_${name})
  add_dependencies(berth_${name} berth_${name}_generated)
  target_include_directories(berth_${name} SYSTEM PUBLIC "${gen}")
  target_link_libraries(berth_${name} PUBLIC protobuf::libprotobuf PkgConfig::grpcpp Threads::Threads
    ${ARG_LIBS})
endfunction()

# berth_test(NAME SOURCES … LIBS … [LABELS root] [TIMEOUT s] [HEAVY [filter]] [ALONE filter] [TIMING filter]
# [LEFT_OUT filter]): a GoogleTest program. Tests that need root say so by the label "root", work in a mount namespace
# of their own and run in a process each; the others of a program share one, since to start it takes longer than most
# of them. With root, `filter` chooses some of the tests.
#
# HEAVY: the test computes, or starts many processes. It takes three of ctest's places, as many as ./dev test has for
# a core: most tests wait for most of their time. Under the sanitizers every other test takes two.
# ALONE: no other test runs meanwhile.
# TIMING: the test waits for deadlines, or drives shells and interpreters. What it runs is in other tests, too, so it is
# not in the suite under the sanitizers.
# LEFT_OUT: in the program, and not in the suite.
function(berth_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;ALONE;TIMING;LEFT_OUT" "SOURCES;LIBS;LABELS;HEAVY" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set(places 1)
  if(BERTH_SANITIZE)
    set(places 2)
    string(APPEND ARG_LEFT_OUT ":${ARG_TIMING}")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  # A test with a main of its own never pulls gtest_main's out of the archive.
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gmock GTest::gtest GTest::gtest_main)
  berth_ours(${name} TEST)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  if("root" IN_LIST ARG_LABELS)
    # Without the values in their names, which may have blanks: ctest remembers how long such tests take, and
    # begins with the longest.
    set(options DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES)
    set(properties PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
    gtest_discover_tests(${name} TEST_FILTER "*-${ARG_ALONE}:${ARG_HEAVY}:${ARG_LEFT_OUT}" ${options} ${properties}
      PROCESSORS ${places})
    if(ARG_HEAVY)
      gtest_discover_tests(${name} TEST_FILTER "${ARG_HEAVY}-${ARG_LEFT_OUT}" ${options} ${properties}
        PROCESSORS 3 COST 50)
    endif()
    if(ARG_ALONE)
      gtest_discover_tests(${name} TEST_FILTER "${ARG_ALONE}-${ARG_LEFT_OUT}" ${options} ${properties}
        RUN_SERIAL TRUE)
    endif()
  else()
    if("HEAVY" IN_LIST ARGN)
      set(places 3)
    endif()
    add_test(NAME ${name} COMMAND ${name})
    # The longest of them take a minute: before ctest knows that, they begin first.
    set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" COST 100
      PROCESSORS ${places})
  endif()
endfunction()

# berth_optimize(TARGETS…): -O1 in the unoptimised builds, too, for what tests compute for a long time. The precompiled
# header is for -O0, so these go without.
function(berth_optimize)
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Debug>:-O1>)
    set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
  endforeach()
endfunction()

# berth_program(NAME SOURCES … LIBS … [DESTINATION dir]): an executable in build/<preset>/bin, installed.
function(berth_program name)
  cmake_parse_arguments(ARG "" "DESTINATION" "SOURCES;LIBS" ${ARGN})
  if(NOT ARG_DESTINATION)
    set(ARG_DESTINATION "${CMAKE_INSTALL_BINDIR}")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS})
  berth_ours(${name})
  install(TARGETS ${name} RUNTIME DESTINATION "${ARG_DESTINATION}")
endfunction()
