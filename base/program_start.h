// What a program of Berth does before anything else. Header only, since the mount helper links little.
// Included by a file with a main alone: a program that includes it begins so.
#pragma once

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace berth {

// Opens /dev/null where one of the descriptors 0 to 2 is closed: else the first file or socket that is opened
// would get its number, and what is written to standard output or error would go there.
__attribute__((no_sanitize("address", "undefined"))) inline void OpenStandardDescriptors(int /*argc*/,
                                                                                         char** /*argv*/,
                                                                                         char** /*envp*/) {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest that is free, which is this one.
    if (open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd) _exit(EXIT_FAILURE);
  }
}

// Before the libraries begin: gRPC's makes an eventfd then.
__attribute__((section(".preinit_array"),
               used)) static void (*const kOpenStandardDescriptors)(int, char**,
                                                                    char**) = &OpenStandardDescriptors;

// This process leaves no core file, which could hold secrets, and only root may trace it or look into its
// memory. It does not hold for a program that this one launches.
inline void LeaveNoCore() { prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); }

}  // namespace berth
