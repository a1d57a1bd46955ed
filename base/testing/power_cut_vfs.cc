#include "base/testing/power_cut_vfs.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace berth {
namespace {

struct Change {
  bool truncate = false;
  size_t offset = 0;  // of a truncation: the new size
  std::string bytes;
};

struct FileState {
  std::string synced;
  std::vector<Change> pending;
};

// Device, inode, and when it was made: the number of an inode is soon another file's.
using FileId = std::tuple<uint64_t, uint64_t, int64_t>;

// Unset: it is no regular file.
std::optional<FileId> IdOf(const char* path) {
  struct statx info{};
  if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &info) != 0)
    return std::nullopt;
  if (!S_ISREG(info.stx_mode)) return std::nullopt;
  const uint64_t device = (static_cast<uint64_t>(info.stx_dev_major) << 32U) | info.stx_dev_minor;
  return FileId(device, info.stx_ino, (info.stx_btime.tv_sec * 1'000'000'000) + info.stx_btime.tv_nsec);
}

void Perform(const Change& change, size_t length, std::string* content) {
  if (change.truncate) {
    content->resize(change.offset, '\0');
    return;
  }
  length = std::min(length, change.bytes.size());
  if (content->size() < change.offset + length) content->resize(change.offset + length, '\0');
  content->replace(change.offset, length, change.bytes, 0, length);
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

struct PowerCutVfs::State {
  sqlite3_vfs vfs{};
  sqlite3_vfs* real = nullptr;
  std::string name = "power-cut";
  mutable std::mutex mutex;
  std::map<FileId, FileState> files;
  std::function<void(const char*)> told;
  uint64_t syncs = 0;
  uint64_t fail_from = 0;
  uint64_t fail_count = 0;

  void Tell(const char* what) const {
    if (told) told(what);
  }
};

namespace {

// What SQLite holds of an open file: the real one lies right behind.
struct CutFile {
  sqlite3_file base;
  PowerCutVfs* unused;
  FileId* id;
  sqlite3_file* real() { return reinterpret_cast<sqlite3_file*>(this + 1); }
};

CutFile* Of(sqlite3_file* file) { return reinterpret_cast<CutFile*>(file); }

}  // namespace

PowerCutVfs::State& PowerCutVfs::Shared() {
  static State state;
  return state;
}

namespace {

// Set by the constructor; SQLite's callbacks carry no pointer of ours but the VFS's.
struct Hooks {
  std::function<void(const FileId&, Change)> wrote;
  std::function<bool(const FileId&)> sync;  // false: it fails
  std::function<void(const char*)> tell;
};
Hooks& TheHooks() {
  static Hooks hooks;
  return hooks;
}

int Close(sqlite3_file* file) {
  CutFile* cut = Of(file);
  delete cut->id;
  cut->id = nullptr;
  return cut->real()->pMethods != nullptr ? cut->real()->pMethods->xClose(cut->real()) : SQLITE_OK;
}
int Read(sqlite3_file* file, void* to, int count, sqlite3_int64 offset) {
  return Of(file)->real()->pMethods->xRead(Of(file)->real(), to, count, offset);
}
int Write(sqlite3_file* file, const void* from, int count, sqlite3_int64 offset) {
  const int code = Of(file)->real()->pMethods->xWrite(Of(file)->real(), from, count, offset);
  if (code == SQLITE_OK) {
    TheHooks().wrote(*Of(file)->id,
                     {.truncate = false,
                      .offset = static_cast<size_t>(offset),
                      .bytes = std::string(static_cast<const char*>(from), static_cast<size_t>(count))});
    TheHooks().tell("write");
  }
  return code;
}
int Truncate(sqlite3_file* file, sqlite3_int64 size) {
  const int code = Of(file)->real()->pMethods->xTruncate(Of(file)->real(), size);
  if (code == SQLITE_OK) {
    TheHooks().wrote(*Of(file)->id, {.truncate = true, .offset = static_cast<size_t>(size), .bytes = {}});
    TheHooks().tell("truncate");
  }
  return code;
}
int Sync(sqlite3_file* file, int /*flags*/) {
  TheHooks().tell("before sync");
  // The real disk is not waited for: what counts is what is noted here.
  const bool ok = TheHooks().sync(*Of(file)->id);
  TheHooks().tell("after sync");
  return ok ? SQLITE_OK : SQLITE_IOERR_FSYNC;
}
int FileSize(sqlite3_file* file, sqlite3_int64* size) {
  return Of(file)->real()->pMethods->xFileSize(Of(file)->real(), size);
}
int Lock(sqlite3_file* file, int kind) { return Of(file)->real()->pMethods->xLock(Of(file)->real(), kind); }
int Unlock(sqlite3_file* file, int kind) {
  return Of(file)->real()->pMethods->xUnlock(Of(file)->real(), kind);
}
int CheckReserved(sqlite3_file* file, int* out) {
  return Of(file)->real()->pMethods->xCheckReservedLock(Of(file)->real(), out);
}
int Control(sqlite3_file* file, int op, void* argument) {
  // Space ahead would be a change that is not noted here.
  if (op == SQLITE_FCNTL_SIZE_HINT || op == SQLITE_FCNTL_CHUNK_SIZE) return SQLITE_OK;
  return Of(file)->real()->pMethods->xFileControl(Of(file)->real(), op, argument);
}
int SectorSize(sqlite3_file* file) { return Of(file)->real()->pMethods->xSectorSize(Of(file)->real()); }
int Characteristics(sqlite3_file* /*file*/) { return 0; }

const sqlite3_io_methods& Methods() {
  static const sqlite3_io_methods methods = [] {
    sqlite3_io_methods m{};
    m.iVersion = 1;  // no shared memory, no mapping: the journal uses neither
    m.xClose = Close;
    m.xRead = Read;
    m.xWrite = Write;
    m.xTruncate = Truncate;
    m.xSync = Sync;
    m.xFileSize = FileSize;
    m.xLock = Lock;
    m.xUnlock = Unlock;
    m.xCheckReservedLock = CheckReserved;
    m.xFileControl = Control;
    m.xSectorSize = SectorSize;
    m.xDeviceCharacteristics = Characteristics;
    return m;
  }();
  return methods;
}

sqlite3_vfs* RealOf(sqlite3_vfs* vfs) { return static_cast<sqlite3_vfs*>(vfs->pAppData); }

int Open(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  CutFile* cut = Of(file);
  std::memset(static_cast<void*>(cut), 0, sizeof(CutFile));
  const int code = RealOf(vfs)->xOpen(RealOf(vfs), name, cut->real(), flags, out_flags);
  if (code != SQLITE_OK) return code;
  cut->id = new FileId(name != nullptr ? IdOf(name).value_or(FileId()) : FileId());
  cut->base.pMethods = &Methods();
  return SQLITE_OK;
}

}  // namespace

PowerCutVfs::PowerCutVfs() {
  State& state = Shared();
  state.real = sqlite3_vfs_find(nullptr);
  state.vfs = *state.real;
  state.vfs.pNext = nullptr;
  state.vfs.zName = state.name.c_str();
  state.vfs.pAppData = state.real;
  state.vfs.szOsFile = static_cast<int>(sizeof(CutFile)) + state.real->szOsFile;
  state.vfs.xOpen = Open;
  // The rest is the real one's, which is found again by each of them.
  state.vfs.xDelete = [](sqlite3_vfs* v, const char* name, int sync) {
    return RealOf(v)->xDelete(RealOf(v), name, sync);
  };
  state.vfs.xAccess = [](sqlite3_vfs* v, const char* name, int flags, int* out) {
    return RealOf(v)->xAccess(RealOf(v), name, flags, out);
  };
  state.vfs.xFullPathname = [](sqlite3_vfs* v, const char* name, int size, char* out) {
    return RealOf(v)->xFullPathname(RealOf(v), name, size, out);
  };
  state.files.clear();
  state.told = nullptr;
  state.syncs = state.fail_from = state.fail_count = 0;
  TheHooks().wrote = [&state](const FileId& id, Change change) {
    const std::lock_guard<std::mutex> lock(state.mutex);
    state.files[id].pending.push_back(std::move(change));
  };
  TheHooks().sync = [&state](const FileId& id) {
    const std::lock_guard<std::mutex> lock(state.mutex);
    const uint64_t number = state.syncs++;
    FileState& file = state.files[id];
    const bool fails = number >= state.fail_from && number < state.fail_from + state.fail_count;
    if (!fails) {
      for (const Change& change : file.pending) Perform(change, change.bytes.size(), &file.synced);
    }
    file.pending.clear();
    return !fails;
  };
  TheHooks().tell = [&state](const char* what) { state.Tell(what); };
  sqlite3_vfs_register(&state.vfs, /*makeDflt=*/0);
}

PowerCutVfs::~PowerCutVfs() { sqlite3_vfs_unregister(&Shared().vfs); }

const std::string& PowerCutVfs::name() const { return Shared().name; }

void PowerCutVfs::OnPoint(std::function<void(const char* what)> told) { Shared().told = std::move(told); }

void PowerCutVfs::FailSyncs(uint64_t n, uint64_t count) {
  State& state = Shared();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.fail_from = state.syncs + n;
  state.fail_count = count;
}

uint64_t PowerCutVfs::syncs() const {
  const std::lock_guard<std::mutex> lock(Shared().mutex);
  return Shared().syncs;
}

void PowerCutVfs::Cut(const std::string& directory, const std::string& copy, std::minstd_rand* random) const {
  const State& state = Shared();
  const std::lock_guard<std::mutex> lock(state.mutex);
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string path = entry.path().string();
    const std::optional<FileId> id = IdOf(path.c_str());
    if (!id.has_value()) continue;
    const auto known = state.files.find(*id);
    std::string content = known == state.files.end() ? ReadAll(path) : known->second.synced;
    if (known != state.files.end() && random != nullptr) {
      for (const Change& change : known->second.pending) {
        switch ((*random)() % 3) {
          case 0:
            break;
          case 1:
            Perform(change, change.bytes.size(), &content);
            break;
          default:
            if (!change.truncate) Perform(change, (*random)() % (change.bytes.size() + 1), &content);
        }
      }
    }
    std::ofstream(copy + "/" + entry.path().filename().string(), std::ios::binary) << content;
  }
}

}  // namespace berth
