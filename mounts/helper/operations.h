// The operations of berth-mount-helper (main.cc says what each prints), and what they share.
//
// Each operation reads its own words of the command line, and returns the program's exit code. Nothing but
// libc, the C++ headers and the census (mounts/): the program starts in a millisecond.
#pragma once

#include <linux/openat2.h>

namespace berth::mount_helper {

// Prints how the program is called, to standard error. Returns 2.
int Usage();
// 0: prints "ok" and returns 0. Else prints "errno E" and returns 1.
int Answered(int error);
// Prints this text and a line's end. Returns 0.
int Say(const char* word);

// A number of digits alone, in this base, at most `limit`.
bool Number(const char* text, int base, unsigned long limit, unsigned long* value);

constexpr unsigned long long kNoSymlinks = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
// openat2(2), close-on-exec. Negative: errno says why.
int OpenAt(int directory, const char* name, int flags, unsigned long long resolve);

// permissions.cc
int SetPermissions(int argc, char** argv);

// devices.cc
int Superblock(int argc, char** argv);
int Exclusive(const char* device);
int Flush(const char* device, const char* sequence);

// mount_path.cc
int MountPath(int argc, char** argv);
int UnmountPath(int argc, char** argv);
int FreePath(const char* path);

}  // namespace berth::mount_helper
