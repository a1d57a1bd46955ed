# How a folder declares its library, its tests and its programs.
include(GNUInstallDirs)
include(GoogleTest)

# One precompiled header serves all of our code: Asio, gRPC and Abseil cost seconds a file.
add_library(berth_pch OBJECT "${PROJECT_SOURCE_DIR}/cmake/pch.cc")
target_link_libraries(berth_pch PUBLIC berth_options Boost::boost PkgConfig::grpcpp spdlog::spdlog
  protobuf::libprotobuf Threads::Threads)
target_precompile_headers(berth_pch PRIVATE "${PROJECT_SOURCE_DIR}/cmake/pch.h")

function(_berth_ours target)
  target_link_libraries(${target} PRIVATE berth_options)
  target_precompile_headers(${target} REUSE_FROM berth_pch)
endfunction()

# berth_library(NAME SOURCES a.cc … PUBLIC libs… PRIVATE libs…): the library berth_NAME, alias berth::NAME.
function(berth_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(berth_${name} STATIC ${ARG_SOURCES})
  add_library(berth::${name} ALIAS berth_${name})
  target_link_libraries(berth_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  _berth_ours(berth_${name})
endfunction()

# berth_proto_library(NAME PROTOS x.proto … LIBS …): generated messages and services, paths from the
# project's root, included as "folder/x.pb.h". Not held to our warnings.
function(berth_proto_library name)
  cmake_parse_arguments(ARG "" "" "PROTOS;LIBS" ${ARGN})
  set(gen "${PROJECT_BINARY_DIR}/gen")
  set(sources)
  foreach(proto IN LISTS ARG_PROTOS)
    string(REGEX REPLACE "\\.proto$" "" stem "${proto}")
    set(outputs "${gen}/${stem}.pb.cc" "${gen}/${stem}.pb.h" "${gen}/${stem}.grpc.pb.cc"
      "${gen}/${stem}.grpc.pb.h")
    add_custom_command(OUTPUT ${outputs}
      COMMAND "${CMAKE_COMMAND}" -E make_directory "${gen}"
      COMMAND protobuf::protoc "-I${PROJECT_SOURCE_DIR}" "--cpp_out=${gen}" "--grpc_out=${gen}"
        "--plugin=protoc-gen-grpc=${GRPC_CPP_PLUGIN}" "${PROJECT_SOURCE_DIR}/${proto}"
      DEPENDS "${PROJECT_SOURCE_DIR}/${proto}" VERBATIM)
    list(APPEND sources "${gen}/${stem}.pb.cc" "${gen}/${stem}.grpc.pb.cc")
  endforeach()
  add_library(berth_${name} STATIC ${sources})
  add_library(berth::${name} ALIAS berth_${name})
  target_include_directories(berth_${name} SYSTEM PUBLIC "${gen}")
  target_link_libraries(berth_${name} PUBLIC protobuf::libprotobuf PkgConfig::grpcpp Threads::Threads
    ${ARG_LIBS})
endfunction()

# berth_test(NAME SOURCES … LIBS … [LABELS …] [TIMEOUT s]): a GoogleTest program. Tests that need root say
# so by the label "root" and work in a mount namespace of their own.
function(berth_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  # A test with a main of its own never pulls gtest_main's out of the archive.
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gmock GTest::gtest GTest::gtest_main)
  _berth_ours(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  set(labels)
  if(ARG_LABELS)
    set(labels LABELS "${ARG_LABELS}") # An empty value would take the next word for its own.
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} ${labels})
endfunction()

# berth_program(NAME SOURCES … LIBS … [DESTINATION dir]): an executable in build/<preset>/bin, installed.
function(berth_program name)
  cmake_parse_arguments(ARG "" "DESTINATION" "SOURCES;LIBS" ${ARGN})
  if(NOT ARG_DESTINATION)
    set(ARG_DESTINATION "${CMAKE_INSTALL_BINDIR}")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS})
  _berth_ours(${name})
  install(TARGETS ${name} RUNTIME DESTINATION "${ARG_DESTINATION}")
endfunction()
