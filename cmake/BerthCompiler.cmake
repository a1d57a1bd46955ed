# The compiler, its warnings and the sanitizers, as interface targets.

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  message(FATAL_ERROR
    "g++ ${CMAKE_CXX_COMPILER_VERSION} miscompiles C++20 coroutines silently (temporaries in a "
    "co_await expression are destroyed twice). Use clang 19: ./dev setup && cmake --preset dev")
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
# Line tables are enough for a stack trace and keep links quick.
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g1")
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(CMAKE_CXX_FLAGS_DEBUG "-O0 -gline-tables-only")
endif()

option(BERTH_SANITIZE "Build with AddressSanitizer and UndefinedBehaviorSanitizer" OFF)

# Everything of ours is compiled with this target; generated code is not.
add_library(berth_options INTERFACE)
target_include_directories(berth_options INTERFACE "${PROJECT_SOURCE_DIR}")
target_compile_options(berth_options INTERFACE
  -Wall -Wextra -Wpedantic -Werror -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  -Wimplicit-fallthrough -Wunused -Wswitch-enum -Wno-unused-parameter
  # Designated initialisers are how options structs are filled: what is left out has its default.
  -Wno-missing-designated-field-initializers)

# What must be the same in every object, generated or not (the precompiled header depends on it).
# -fPIC for programs too: an object built -fPIE could not share the precompiled header with libraries.
add_compile_options(-fPIC -fstack-protector-strong)
add_link_options(-Wl,--as-needed)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_link_options(-fuse-ld=lld) # clang finds its own; Debian's lld-19 has no other name in PATH
endif()
if(BERTH_SANITIZE)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize=function -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  add_link_options(-fsanitize=address,undefined)
  # Recycled coroutine frames would hide a use after free.
  add_compile_definitions(BOOST_ASIO_DISABLE_AWAITABLE_FRAME_RECYCLING)
elseif(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
  add_compile_definitions(_FORTIFY_SOURCE=2)
  add_link_options(-Wl,-z,relro,-z,now)
endif()
