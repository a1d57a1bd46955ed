#include "mounts/testing/fuse_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/safe_path.h"
#include "base/status.h"

namespace berth {
namespace {

constexpr uint64_t kFile = 2;  // the root is FUSE_ROOT_ID
constexpr uint64_t kCached = 3;
constexpr std::string_view kCachedName = "cached";
constexpr char kFileName[] = "hello";
constexpr size_t kFileLimit = size_t{64} * 1024;
constexpr uint32_t kMaxWrite = 4096;
constexpr size_t kRequestSize = FUSE_MIN_READ_BUFFER;
constexpr size_t kQueueLimit = 256;

// The server's memory. It runs in a fork of a process that may have threads, so it allocates nothing.
struct Memory {
  char requests[kQueueLimit][kRequestSize];  // taken while it hangs
  size_t request_sizes[kQueueLimit];
  size_t queued = 0;
  char file[kFileLimit] = "hello\n";
  size_t file_size = 6;
  fuse_attr root{};
  fuse_attr hello{};
};
Memory& TheMemory() {
  static Memory memory;
  return memory;
}

class Server {
 public:
  Server(int fuse, int control, int answers) : fuse_(fuse), control_(control), answers_(answers) {
    memory_.root.ino = FUSE_ROOT_ID;
    memory_.root.mode = S_IFDIR | 0755;
    memory_.root.nlink = 2;
    memory_.root.blksize = 4096;
    memory_.hello.ino = kFile;
    memory_.hello.mode = S_IFREG | 0644;
    memory_.hello.nlink = 1;
    memory_.hello.blksize = 4096;
  }

  void Run() {
    // The kernel's greeting, there since the mount: while it has no answer, who waits for the file system can
    // still be killed, and does not hang.
    TakeRequest();
    Say("ready\n");
    while (!ended_) {
      const bool full = memory_.queued == kQueueLimit;
      pollfd watched[2] = {{.fd = full ? -1 : fuse_, .events = POLLIN, .revents = 0},
                           {.fd = control_, .events = POLLIN, .revents = 0}};
      if (poll(watched, 2, -1) < 0) {
        if (errno == EINTR) continue;
        return;
      }
      if (watched[1].revents != 0) TakeCommands();
      if (!ended_ && watched[0].revents != 0) TakeRequest();
    }
  }

 private:
  void Say(std::string_view text) const {
    // A process that does not listen any more may still write.
    [[maybe_unused]] const ssize_t written = write(answers_, text.data(), text.size());
  }

  void TakeCommands() {
    const ssize_t count = read(control_, line_ + line_size_, sizeof line_ - line_size_);
    if (count <= 0) {
      ended_ = count == 0 || errno != EINTR;
      return;
    }
    line_size_ += static_cast<size_t>(count);
    while (true) {
      const std::string_view given(line_, line_size_);
      const size_t end = given.find('\n');
      if (end == std::string_view::npos) break;
      Obey(given.substr(0, end));
      line_size_ -= end + 1;
      memmove(line_, line_ + end + 1, line_size_);
    }
    if (line_size_ == sizeof line_) line_size_ = 0;
  }

  void Obey(std::string_view command) {
    if (command == "held?") return Say(memory_.queued > 0 ? "yes\n" : "no\n");
    if (command == "hang") {
      hangs_ = true;
    } else if (command == "resume") {
      hangs_ = false;
      for (size_t i = 0; i < memory_.queued; ++i) Answer(memory_.requests[i], memory_.request_sizes[i]);
      memory_.queued = 0;
    } else if (command == "die") {
      ended_ = true;
    }
    Say("ok\n");
  }

  void TakeRequest() {
    char* const request = memory_.requests[memory_.queued];
    const ssize_t count = read(fuse_, request, kRequestSize);
    if (count < 0) {
      // ENOENT: it was withdrawn. ENODEV: the file system was unmounted or aborted.
      ended_ = errno == ENODEV;
      return;
    }
    if (static_cast<size_t>(count) < sizeof(fuse_in_header)) return;
    if (!hangs_) {
      Answer(request, static_cast<size_t>(count));
      return;
    }
    memory_.request_sizes[memory_.queued] = static_cast<size_t>(count);
    ++memory_.queued;
  }

  // --- answers ---

  void Reply(const fuse_in_header& in, int error, const void* body, size_t size) const {
    fuse_out_header out{};
    out.len = static_cast<uint32_t>(sizeof out + size);
    out.error = -error;
    out.unique = in.unique;
    iovec parts[2] = {{.iov_base = &out, .iov_len = sizeof out},
                      {.iov_base = const_cast<void*>(body), .iov_len = size}};
    // It may have been dropped meanwhile: then the answer is not wanted.
    [[maybe_unused]] const ssize_t written = writev(fuse_, parts, size == 0 ? 1 : 2);
  }
  void Fail(const fuse_in_header& in, int error) const { Reply(in, error, nullptr, 0); }
  template <class Body>
  void Reply(const fuse_in_header& in, const Body& body) const {
    Reply(in, 0, &body, sizeof body);
  }

  fuse_attr& Attributes(uint64_t node) { return node == FUSE_ROOT_ID ? memory_.root : memory_.hello; }
  fuse_attr_out AttributesOut(uint64_t node) {
    fuse_attr_out out{};
    out.attr = Attributes(node);
    if (node != FUSE_ROOT_ID) out.attr.size = memory_.file_size;
    return out;
  }

  void Init(const fuse_in_header& in, const fuse_init_in& asked) const {
    fuse_init_out out{};
    out.major = FUSE_KERNEL_VERSION;
    out.minor = std::min<uint32_t>(asked.minor, FUSE_KERNEL_MINOR_VERSION);
    out.max_readahead = asked.max_readahead;
    out.max_background = 64;
    out.congestion_threshold = 48;
    out.max_write = kMaxWrite;
    out.time_gran = 1;
    Reply(in, out);
  }

  void Lookup(const fuse_in_header& in, std::string_view name) {
    if (in.nodeid != FUSE_ROOT_ID || (name != kFileName && name != kCachedName)) return Fail(in, ENOENT);
    fuse_entry_out out{};
    out.nodeid = name == kFileName ? kFile : kCached;
    out.attr = AttributesOut(kFile).attr;
    Reply(in, out);
  }

  void SetAttributes(const fuse_in_header& in, const fuse_setattr_in& asked) {
    fuse_attr& attributes = Attributes(in.nodeid);
    if ((asked.valid & FATTR_MODE) != 0) {
      attributes.mode = (attributes.mode & S_IFMT) | (asked.mode & 07777);
    }
    if ((asked.valid & FATTR_UID) != 0) attributes.uid = asked.uid;
    if ((asked.valid & FATTR_GID) != 0) attributes.gid = asked.gid;
    if ((asked.valid & FATTR_SIZE) != 0 && in.nodeid != FUSE_ROOT_ID) {
      if (asked.size > kFileLimit) return Fail(in, EFBIG);
      if (asked.size > memory_.file_size) {
        memset(memory_.file + memory_.file_size, 0, asked.size - memory_.file_size);
      }
      memory_.file_size = asked.size;
    }
    Reply(in, AttributesOut(in.nodeid));
  }

  void Open(const fuse_in_header& in) const {
    fuse_open_out out{};
    if (in.nodeid == kFile) out.open_flags = FOPEN_DIRECT_IO;
    Reply(in, out);
  }

  void Read(const fuse_in_header& in, const fuse_read_in& asked) {
    const size_t from = std::min<size_t>(asked.offset, memory_.file_size);
    Reply(in, 0, memory_.file + from, std::min<size_t>(asked.size, memory_.file_size - from));
  }

  void Write(const fuse_in_header& in, const fuse_write_in& asked, const char* data, size_t size) {
    if (asked.size > size) return Fail(in, EINVAL);
    if (asked.offset + asked.size > kFileLimit) return Fail(in, ENOSPC);
    memcpy(memory_.file + asked.offset, data, asked.size);
    memory_.file_size = std::max<size_t>(memory_.file_size, asked.offset + asked.size);
    fuse_write_out out{};
    out.size = asked.size;
    Reply(in, out);
  }

  void ReadDirectory(const fuse_in_header& in, const fuse_read_in& asked) const {
    struct Entry {
      uint64_t inode;
      uint32_t type;
      std::string_view name;
    };
    const Entry entries[] = {{FUSE_ROOT_ID, S_IFDIR >> 12, "."},
                             {FUSE_ROOT_ID, S_IFDIR >> 12, ".."},
                             {kFile, S_IFREG >> 12, kFileName}};
    char out[512] = {};
    size_t size = 0;
    for (size_t i = asked.offset; i < std::size(entries); ++i) {
      fuse_dirent entry{};
      entry.ino = entries[i].inode;
      entry.off = i + 1;
      entry.namelen = static_cast<uint32_t>(entries[i].name.size());
      entry.type = entries[i].type;
      const size_t length = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + entries[i].name.size());
      if (size + length > std::min<size_t>(asked.size, sizeof out)) break;
      memcpy(out + size, &entry, FUSE_NAME_OFFSET);
      memcpy(out + size + FUSE_NAME_OFFSET, entries[i].name.data(), entries[i].name.size());
      size += length;
    }
    Reply(in, 0, out, size);
  }

  void StatFs(const fuse_in_header& in) const {
    fuse_statfs_out out{};
    out.st.blocks = 1024;
    out.st.bfree = 512;
    out.st.bavail = 512;
    out.st.files = 2;
    out.st.bsize = 4096;
    out.st.frsize = 4096;
    out.st.namelen = 255;
    Reply(in, out);
  }

  // The body of a request as a T; zeros where it is shorter.
  template <class T>
  static T Body(const char* request, size_t size) {
    T body{};
    memcpy(&body, request + sizeof(fuse_in_header), std::min(sizeof body, size - sizeof(fuse_in_header)));
    return body;
  }

  void Answer(const char* request, size_t size) {
    fuse_in_header in{};
    memcpy(&in, request, sizeof in);
    const char* const body = request + sizeof in;
    const size_t body_size = size - sizeof in;
    switch (in.opcode) {
      case FUSE_INIT:
        return Init(in, Body<fuse_init_in>(request, size));
      case FUSE_LOOKUP:
        return Lookup(in, std::string_view(body, strnlen(body, body_size)));
      case FUSE_GETATTR:
        return Reply(in, AttributesOut(in.nodeid));
      case FUSE_SETATTR:
        return SetAttributes(in, Body<fuse_setattr_in>(request, size));
      case FUSE_OPEN:
      case FUSE_OPENDIR:
        return Open(in);
      case FUSE_READ:
        return Read(in, Body<fuse_read_in>(request, size));
      case FUSE_WRITE: {
        const size_t lead = std::min(sizeof(fuse_write_in), body_size);
        return Write(in, Body<fuse_write_in>(request, size), body + lead, body_size - lead);
      }
      case FUSE_READDIR:
        return ReadDirectory(in, Body<fuse_read_in>(request, size));
      case FUSE_STATFS:
        return StatFs(in);
      case FUSE_RELEASE:
      case FUSE_RELEASEDIR:
      case FUSE_FSYNC:
      case FUSE_FSYNCDIR:
      case FUSE_FLUSH:
      case FUSE_DESTROY:
        return Fail(in, 0);
      case FUSE_FORGET:
      case FUSE_BATCH_FORGET:
      case FUSE_INTERRUPT:
        return;  // no answer is awaited
      case FUSE_CREATE:
      case FUSE_MKNOD:
      case FUSE_MKDIR:
      case FUSE_SYMLINK:
      case FUSE_LINK:
      case FUSE_UNLINK:
      case FUSE_RMDIR:
      case FUSE_RENAME:
      case FUSE_RENAME2:
        return Fail(in, EPERM);
      default:
        return Fail(in, ENOSYS);
    }
  }

  int fuse_;
  int control_;
  int answers_;
  Memory& memory_ = TheMemory();
  char line_[64] = {};
  size_t line_size_ = 0;
  bool hangs_ = false;
  bool ended_ = false;
};

absl::StatusOr<UniqueFd> MountFuse(const std::string& path) {
  UniqueFd fuse(open("/dev/fuse", O_RDWR | O_CLOEXEC));
  if (!fuse.valid()) return ErrnoStatus(errno, "open /dev/fuse");
  const std::string options =
      fmt::format("fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions", fuse.get());
  if (mount("berth-test", path.c_str(), "fuse.berth-test", MS_NOSUID | MS_NODEV, options.c_str()) != 0) {
    return ErrnoStatus(errno, fmt::format("mount a FUSE file system at {}", path));
  }
  return fuse;
}

// In the child: nothing of the parent's but `fuse` and `control`.
[[noreturn]] void Serve(int fuse, int control) {
  setsid();
  const int high_fuse = fcntl(fuse, F_DUPFD, 100);
  const int high_control = fcntl(control, F_DUPFD, 100);
  const int null = open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) dup2(null, fd);
  if (dup2(high_fuse, 3) != 3 || dup2(high_control, 4) != 4) _exit(1);
  syscall(SYS_close_range, 5U, ~0U, 0U);
  Server(3, 4, 4).Run();
  _exit(0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<FuseServer>> FuseServer::Mount(const std::string& path) {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "make a pair of sockets");
  }
  UniqueFd mine(ends[0]);
  UniqueFd theirs(ends[1]);
  BERTH_ASSIGN_OR_RETURN(UniqueFd fuse, MountFuse(path));
  const pid_t pid = fork();
  if (pid < 0) {
    const int error = errno;
    umount2(path.c_str(), UMOUNT_NOFOLLOW | MNT_DETACH);
    return ErrnoStatus(error, "fork");
  }
  if (pid == 0) Serve(fuse.get(), theirs.get());
  fuse.Reset();
  theirs.Reset();
  char ready[8] = {};
  if (read(mine.get(), ready, sizeof ready) <= 0) return absl::InternalError("the FUSE server did not begin");
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, LookAt(path));
  return std::unique_ptr<FuseServer>(new FuseServer(path, facts.device, pid, std::move(mine)));
}

FuseServer::~FuseServer() {
  Die();
  const auto facts = LookAt(path_);
  if (facts.ok() && facts->mount_root && facts->device == device_) {
    umount2(path_.c_str(), UMOUNT_NOFOLLOW | MNT_DETACH);
  }
}

std::string FuseServer::Tell(std::string_view command) const {
  char answer[8] = {};
  // A server that has died says nothing.
  if (send(control_.get(), command.data(), command.size(), MSG_NOSIGNAL) < 0) return {};
  const ssize_t size = read(control_.get(), answer, sizeof answer);
  return {answer, size > 0 ? static_cast<size_t>(size) : 0};
}

bool FuseServer::HoldsRequest() const { return Tell("held?\n") == "yes\n"; }

void FuseServer::Hang() const { Tell("hang\n"); }
void FuseServer::Resume() const { Tell("resume\n"); }

void FuseServer::Die() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

absl::Status RunFuseServer(const std::string& path, int control_fd, int answer_fd) {
  BERTH_ASSIGN_OR_RETURN(const UniqueFd fuse, MountFuse(path));
  Server(fuse.get(), control_fd, answer_fd).Run();
  return absl::OkStatus();
}

}  // namespace berth
