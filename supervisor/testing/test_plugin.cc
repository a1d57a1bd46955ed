// A plugin for the supervisor's tests: serves the Unix socket that CSI_ENDPOINT names, accepting connections
// and closing them, and misbehaves as its arguments say.
//
//   --exit N        write "no licence" to standard error and exit with N at once
//   --never-listen  bind the socket, but do not listen
//   --no-socket     do not even bind
//   --ignore-term   ignore SIGTERM
//   --serve-once FIFO  wait until FIFO is opened for writing, and then replace whatever socket is there
//   --say TEXT      write TEXT to standard output
//   --print-environment
//
// Always: takes a lock on BERTH_PLUGIN_DIR/lock for as long as it runs, and leaves a file "twice" there if
// another instance has it; writes the monotonic time at which it began to listen to "listening".
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

namespace {

int Fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  return 90;
}

void WriteFile(const std::string& path, const std::string& content) {
  const std::string temporary = path + ".new";
  FILE* file = fopen(temporary.c_str(), "we");
  if (file == nullptr) exit(Fail("fopen"));
  fputs(content.c_str(), file);
  fclose(file);
  if (rename(temporary.c_str(), path.c_str()) != 0) exit(Fail("rename"));
}

}  // namespace

int main(int argc, char** argv) {
  bool never_listen = false;
  bool no_socket = false;
  std::string serve_once;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (argument == "--exit") {
      fputs("no licence\n", stderr);
      return atoi(value);
    }
    if (argument == "--say") puts(value);
    if (argument == "--serve-once") serve_once = value;
    if (argument == "--never-listen") never_listen = true;
    if (argument == "--no-socket") no_socket = true;
    if (argument == "--ignore-term") signal(SIGTERM, SIG_IGN);
    if (argument == "--print-environment") {
      for (char** variable = environ; *variable != nullptr; ++variable) puts(*variable);
    }
  }
  fflush(stdout);

  const char* directory = getenv("BERTH_PLUGIN_DIR");
  const char* endpoint = getenv("CSI_ENDPOINT");
  if (directory == nullptr || endpoint == nullptr || strncmp(endpoint, "unix://", 7) != 0) return 91;
  const std::string dir = directory;
  const int lock = open((dir + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) return Fail("open lock");
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) WriteFile(dir + "/twice", "another instance runs\n");

  const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  strncpy(address.sun_path, endpoint + 7, sizeof address.sun_path - 1);
  if (!serve_once.empty()) {
    if (open(serve_once.c_str(), O_RDONLY | O_CLOEXEC) < 0) return Fail("open the FIFO");
    unlink(endpoint + 7);
  }
  if (!no_socket) {
    if (bind(server, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return Fail("bind");
    if (!never_listen) {
      timespec now{};
      clock_gettime(CLOCK_MONOTONIC, &now);
      WriteFile(dir + "/listening", std::to_string(now.tv_sec * 1'000'000'000 + now.tv_nsec));
      if (listen(server, 16) != 0) return Fail("listen");
    }
  }
  while (true) {
    if (no_socket || never_listen) {
      pause();
      continue;
    }
    const int connection = accept4(server, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection >= 0) close(connection);
  }
}
