# Every library comes from Debian 12 and 13; ARCHITECTURE.md names each with its reason.

find_package(Threads REQUIRED)
find_package(Boost 1.81 CONFIG REQUIRED COMPONENTS filesystem)
find_package(Protobuf 3.21 REQUIRED) # CMake's own module: Debian ships no config file.
find_package(SQLite3 REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(spdlog REQUIRED)
find_package(GTest REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(grpcpp REQUIRED IMPORTED_TARGET grpc++) # gRPC's CMake package does not configure here.
pkg_check_modules(acl REQUIRED IMPORTED_TARGET libacl)
pkg_check_modules(mount REQUIRED IMPORTED_TARGET mount)
pkg_check_modules(systemd REQUIRED IMPORTED_TARGET libsystemd)
pkg_check_modules(tomlplusplus REQUIRED IMPORTED_TARGET tomlplusplus)
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
