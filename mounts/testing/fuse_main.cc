// berth-test-fuse MOUNTPOINT FIFO: serves a small FUSE file system (fuse_server.h) at the directory
// MOUNTPOINT, for tests of whole nodes. Commands are lines written to FIFO, which is made if it is missing:
// "hang", "resume", "die". On its standard output it says "ready" once it is mounted, and "ok" to each
// command. However it ends, the mount stays, dead; it ends with the process that started it.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "mounts/testing/fuse_server.h"

int main(int argc, char** argv) {
  CLI::App app{"a FUSE file system that hangs and dies on request"};
  std::string mountpoint;
  std::string fifo;
  app.add_option("mountpoint", mountpoint)->required();
  app.add_option("fifo", fifo)->required();
  CLI11_PARSE(app, argc, argv);

  // One thread here, and its parent has long ended its own set-up: the signal comes with its end.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGPIPE, SIG_IGN);
  if (mkfifo(fifo.c_str(), 0600) != 0 && errno != EEXIST) {
    std::fprintf(stderr, "%s: %s\n", fifo.c_str(), std::strerror(errno));
    return 1;
  }
  // Open for writing too: otherwise it would end with its first writer.
  const berth::UniqueFd control(open(fifo.c_str(), O_RDWR | O_CLOEXEC));
  if (!control.valid()) {
    std::fprintf(stderr, "%s: %s\n", fifo.c_str(), std::strerror(errno));
    return 1;
  }
  const absl::Status status = berth::RunFuseServer(mountpoint, control.get(), STDOUT_FILENO);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
