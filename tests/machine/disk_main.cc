// berth-test-disk: the disk of a test machine, over NBD on a Unix socket, which loses what was not flushed
// when its client goes without a disconnect, as a machine does when its power is cut.
//
// One client after another; what a client said last, a disconnect or nothing, distinguishes an orderly end
// from a cut. The protocol is the part of https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md
// that QEMU speaks: fixed newstyle, NBD_OPT_GO, simple replies.

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/status.h"
#include "tests/machine/volatile_disk.h"

namespace berth {
namespace {

constexpr uint64_t kOptionMagic = 0x49484156454f5054;  // "IHAVEOPT"
constexpr uint64_t kOptionReplyMagic = 0x3e889045565a9;
constexpr uint32_t kRequestMagic = 0x25609513;
constexpr uint32_t kReplyMagic = 0x67446698;

constexpr uint16_t kFixedNewstyle = 1;
constexpr uint16_t kNoZeroes = 2;

constexpr uint32_t kOptionAbort = 2;
constexpr uint32_t kOptionInfo = 6;
constexpr uint32_t kOptionGo = 7;
constexpr uint32_t kReplyAck = 1;
constexpr uint32_t kReplyInfo = 3;
constexpr uint32_t kReplyUnsupported = (1U << 31) + 1;

constexpr uint16_t kHasFlags = 1;
constexpr uint16_t kSendsFlush = 4;
constexpr uint16_t kSendsFua = 8;

constexpr uint16_t kRead = 0;
constexpr uint16_t kWrite = 1;
constexpr uint16_t kDisconnect = 2;
constexpr uint16_t kFlush = 3;
constexpr uint16_t kFua = 1;

constexpr uint32_t kMaxLength = 32 * 1024 * 1024;
constexpr uint32_t kMaxOption = 64 * 1024;

enum class End { kDisconnected, kGone };

class Connection {
 public:
  Connection(UniqueFd socket, VolatileDisk& disk) : socket_(std::move(socket)), disk_(disk) {}

  // Until the client says that it goes, or is gone. An error is the disk's, or a client that is no NBD
  // client.
  absl::StatusOr<End> Serve() {
    if (!Negotiate()) return End::kGone;
    while (true) {
      uint32_t magic = 0;
      uint16_t flags = 0;
      uint16_t type = 0;
      uint64_t handle = 0;
      uint64_t offset = 0;
      uint32_t length = 0;
      if (!Get(magic) || !Get(flags) || !Get(type) || !Get(handle) || !Get(offset) || !Get(length))
        return End::kGone;
      if (magic != kRequestMagic) return absl::InternalError("that is no request");
      if (type == kDisconnect) return End::kDisconnected;
      uint32_t error = 0;
      std::string data;
      if (type == kRead || type == kWrite) {
        if (length > kMaxLength || offset > disk_.size() || length > disk_.size() - offset)
          return absl::InternalError("a request beyond the disk");
        data.resize(length);
      }
      if (type == kWrite && !Receive(data.data(), data.size())) return End::kGone;
      switch (type) {
        case kRead:
          BERTH_RETURN_IF_ERROR(disk_.Read(offset, data));
          break;
        case kWrite:
          BERTH_RETURN_IF_ERROR(disk_.Write(offset, data));
          // All before it is flushed with it: more than is asked for, but rare.
          if ((flags & kFua) != 0) BERTH_RETURN_IF_ERROR(disk_.Flush());
          data.clear();
          break;
        case kFlush:
          BERTH_RETURN_IF_ERROR(disk_.Flush());
          break;
        default:
          error = EINVAL;
      }
      if (!Send(Bytes(kReplyMagic) + Bytes(error) + Bytes(handle) + data)) return End::kGone;
    }
  }

 private:
  bool Negotiate() {
    if (!Send("NBDMAGIC" + Bytes(kOptionMagic) + Bytes(static_cast<uint16_t>(kFixedNewstyle | kNoZeroes))))
      return false;
    uint32_t client_flags = 0;
    if (!Get(client_flags)) return false;
    while (true) {
      uint64_t magic = 0;
      uint32_t option = 0;
      uint32_t length = 0;
      if (!Get(magic) || !Get(option) || !Get(length) || magic != kOptionMagic || length > kMaxOption)
        return false;
      std::string data(length, '\0');
      if (!Receive(data.data(), data.size())) return false;
      const auto reply = [&](uint32_t type, const std::string& payload) {
        return Send(Bytes(kOptionReplyMagic) + Bytes(option) + Bytes(type) +
                    Bytes(static_cast<uint32_t>(payload.size())) + payload);
      };
      if (option == kOptionGo || option == kOptionInfo) {
        const std::string facts = Bytes(uint16_t{0}) + Bytes(disk_.size()) +
                                  Bytes(static_cast<uint16_t>(kHasFlags | kSendsFlush | kSendsFua));
        if (!reply(kReplyInfo, facts) || !reply(kReplyAck, "")) return false;
        if (option == kOptionGo) return true;
      } else if (option == kOptionAbort) {
        return reply(kReplyAck, "") && false;
      } else if (!reply(kReplyUnsupported, "")) {
        return false;
      }
    }
  }

  template <class T>
  static std::string Bytes(T value) {
    std::string bytes(sizeof(T), '\0');
    for (size_t i = 0; i < sizeof(T); ++i)
      bytes[sizeof(T) - 1 - i] = static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff);
    return bytes;
  }

  template <class T>
  bool Get(T& value) {
    std::string bytes(sizeof(T), '\0');
    if (!Receive(bytes.data(), bytes.size())) return false;
    uint64_t number = 0;
    for (const char byte : bytes) number = number << 8 | static_cast<unsigned char>(byte);
    value = static_cast<T>(number);
    return true;
  }

  bool Receive(char* data, size_t size) {
    while (size > 0) {
      const ssize_t got = recv(socket_.get(), data, size, MSG_WAITALL);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      data += got;
      size -= static_cast<size_t>(got);
    }
    return true;
  }

  bool Send(const std::string& data) {
    size_t sent = 0;
    while (sent < data.size()) {
      const ssize_t put = send(socket_.get(), data.data() + sent, data.size() - sent, MSG_NOSIGNAL);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return false;
      sent += static_cast<size_t>(put);
    }
    return true;
  }

  UniqueFd socket_;
  VolatileDisk& disk_;
};

// The socket appears at `path` once it can be connected to.
absl::StatusOr<UniqueFd> Listen(const std::string& path) {
  const std::string early = path + ".early";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (early.size() >= sizeof(address.sun_path)) return absl::InvalidArgumentError("too long a path: " + path);
  memcpy(address.sun_path, early.c_str(), early.size() + 1);
  unlink(early.c_str());  // of a run that was cut off here
  UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener.get(), 1) != 0 || rename(early.c_str(), path.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, "listen on " + path);
  }
  return listener;
}

absl::Status Run(const std::string& image, const std::string& changes, const std::string& path,
                 uint64_t seed) {
  BERTH_ASSIGN_OR_RETURN(VolatileDisk disk, VolatileDisk::Open(image, changes));
  BERTH_ASSIGN_OR_RETURN(const UniqueFd listener, Listen(path));
  std::mt19937_64 random(seed);
  while (true) {
    UniqueFd client(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client.valid()) return absl::ErrnoToStatus(errno, "accept");
    BERTH_ASSIGN_OR_RETURN(const End end, Connection(std::move(client), disk).Serve());
    if (end == End::kDisconnected) {
      BERTH_RETURN_IF_ERROR(disk.Flush());
    } else {
      BERTH_ASSIGN_OR_RETURN(const VolatileDisk::Loss loss, disk.CutPower(random));
      fmt::print("    the disk had {} blocks that were not flushed, and lost {} of them\n", loss.blocks,
                 loss.lost);
      fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace berth

int main(int argc, char** argv) {
  CLI::App app("A disk for test machines that lose their power, over NBD");
  std::string image;
  std::string changes;
  std::string path;
  uint64_t seed = 0;
  app.add_option("--image", image, "What the disk begins with; never written")->required();
  app.add_option("--changes", changes, "Where changes are kept; made again")->required();
  app.add_option("--socket", path, "Where it is served")->required();
  app.add_option("--seed", seed, "Of the choice of what is lost")->required();
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = berth::Run(image, changes, path, seed);
  fmt::print(stderr, "berth-test-disk: {}\n", berth::MessageOf(status));
  return 1;
}
