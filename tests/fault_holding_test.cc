// Every way to have a volume against every way to release it, drawn at random from a seed (FAULTS rows 37,
// 47 and 49): whole nodes with berth-hostpath, real processes, mounts and disks. While a volume has a holder
// it is shown, not deleted, not detached and no sole writer's, also for the next berthd; afterwards it is
// released by itself.
//
// BERTH_HOLDER_ROUNDS and BERTH_HOLDER_SEED: how many rounds, and which. A failure names its own.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/mount.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/testing/holder.h"
#include "base/testing/run_on.h"
#include "tests/harness/node.h"
#include "tests/harness/scheduler_fixture.h"

namespace berth {
namespace {

using std::chrono::seconds;

constexpr unsigned kRounds = 4;
constexpr unsigned kAtOnce = 5;  // volumes of a lease that runs out

unsigned FromEnvironment(const char* name, unsigned otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

bool RunShell(const std::string& command) { return std::system(command.c_str()) == 0; }
bool Bind(const std::string& from, const std::string& to) {
  return mount(from.c_str(), to.c_str(), nullptr, MS_BIND, nullptr) == 0;
}
bool Unshared(unsigned long propagation) {
  return unshare(CLONE_FS | CLONE_NEWNS) == 0 &&
         mount(nullptr, "/", nullptr, MS_REC | propagation, nullptr) == 0;
}
bool OpenAndKeep(const std::string& path) { return open(path.c_str(), O_RDWR) >= 0; }
bool MakeFile(const std::string& path) {
  const int fd = open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  return fd >= 0 && close(fd) == 0;
}

enum class Kind : uint8_t { kDirectory, kImage, kBlock };

// What a way to have a volume is given.
struct Place {
  Kind kind = Kind::kDirectory;
  std::string target;
  std::string data;       // beneath the target; of a block volume the target
  std::string scratch;    // an empty directory
  std::string neighbour;  // another volume's target
};

// Has the volume until it is destroyed.
struct Grip {
  std::unique_ptr<Holder> process;
  std::function<bool()> end;  // of what is no process

  Grip(std::unique_ptr<Holder> its_process, std::function<bool()> its_end)
      : process(std::move(its_process)), end(std::move(its_end)) {}
  Grip(const Grip&) = delete;
  Grip& operator=(const Grip&) = delete;
  ~Grip() {
    process.reset();
    if (end) EXPECT_TRUE(end()) << strerror(errno);
  }
};

std::unique_ptr<Grip> Process(const std::function<bool()>& grip) {
  return std::make_unique<Grip>(std::make_unique<Holder>(grip), nullptr);
}
std::unique_ptr<Grip> Thing(bool made, std::function<bool()> end) {
  EXPECT_TRUE(made) << strerror(errno);
  return std::make_unique<Grip>(nullptr, made ? std::move(end) : nullptr);
}

struct Way {
  const char* name;
  bool file_system;  // of a volume with a file system; else of a raw device
  std::unique_ptr<Grip> (*take)(const Place& place);
};

std::unique_ptr<Grip> KeptNamespace(const Place& place) {
  const std::string kept = place.scratch + "/ns";
  bool bound = MakeFile(kept);
  // One with a lower number than ours cannot be mounted here, and each CPU gives out its own numbers.
  for (int i = 0; bound; ++i) {
    const Holder made([] { return Unshared(MS_PRIVATE); });
    if (Bind(fmt::format("/proc/{}/ns/mnt", made.pid()), kept)) break;
    bound = i < 200;
  }
  return Thing(bound, [kept] { return umount2(kept.c_str(), MNT_DETACH) == 0; });
}

std::unique_ptr<Grip> LoopDevice(const Place& place) {
  const std::string name = place.scratch + "/loop";
  return Thing(RunShell(fmt::format("losetup --find --show {} > {}", place.data, name)),
               [name] { return RunShell(fmt::format("losetup --detach $(cat {})", name)); });
}

std::unique_ptr<Grip> Mounted(bool made, const std::string& path) {
  return Thing(made, [path] { return umount2(path.c_str(), UMOUNT_NOFOLLOW) == 0; });
}

// That writes to the volume, which it calls so.
std::unique_ptr<Grip> Overlay(const Place& place, const std::string& volume) {
  const std::string options =
      fmt::format("lowerdir={0},upperdir={1}/up,workdir={1}/work", place.scratch, volume);
  for (const char* const name : {"/up", "/work"}) mkdir((volume + name).c_str(), 0755);
  const bool made = mount("overlay", place.scratch.c_str(), "overlay", 0, options.c_str()) == 0;
  return Mounted(made, place.scratch);
}

const Way kWays[] = {
    {"nobody", true, [](const Place&) { return std::unique_ptr<Grip>(); }},
    {"an open file", true,
     [](const Place& place) { return Process([&] { return OpenAndKeep(place.data); }); }},
    {"a working directory", true,
     [](const Place& place) { return Process([&] { return chdir(place.target.c_str()) == 0; }); }},
    {"a mapped file", true,
     [](const Place& place) {
       return Process([&] {
         const int fd = open(place.data.c_str(), O_RDWR);
         return mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED &&
                close(fd) == 0;
       });
     }},
    {"a bind in a container", true,
     [](const Place& place) {
       return Process([&] { return Unshared(MS_SLAVE) && Bind(place.target, place.scratch); });
     }},
    {"a private clone of the tree", true,
     [](const Place&) { return Process([] { return Unshared(MS_PRIVATE); }); }},
    {"a chrooted process", true,
     [](const Place& place) {
       return Process([&] {
         return Unshared(MS_PRIVATE) && OpenAndKeep(place.data) && chroot(place.scratch.c_str()) == 0 &&
                chdir("/") == 0;
       });
     }},
    {"one thread's namespace", true,
     [](const Place& place) {
       return Process([&] {
         std::atomic<int> done = 0;
         std::thread([&] {
           done = Unshared(MS_SLAVE) && Bind(place.target, place.scratch) ? 1 : -1;
           while (true) pause();
         }).detach();
         while (done == 0) std::this_thread::yield();
         return done == 1;
       });
     }},
    {"a descriptor of a detached clone", true,
     [](const Place& place) {
       return Process(
           [&] { return syscall(SYS_open_tree, AT_FDCWD, place.target.c_str(), OPEN_TREE_CLONE) >= 0; });
     }},
    {"a namespace that a file keeps", true, KeptNamespace},
    {"a bind elsewhere", true,
     [](const Place& place) { return Mounted(Bind(place.target, place.scratch), place.scratch); }},
    {"a bind in another volume's target", true,
     [](const Place& place) {
       const std::string inner = place.neighbour + "/inner";
       return Mounted((mkdir(inner.c_str(), 0755) == 0 || errno == EEXIST) && Bind(place.target, inner),
                      inner);
     }},
    {"a loop device on a file", true, LoopDevice},
    {"a loop device that a container left behind", true,
     [](const Place& place) {
       const std::string name = place.scratch + "-loop";
       const Holder container([&] {
         return Unshared(MS_PRIVATE) && Bind(place.target, place.scratch) &&
                RunShell(fmt::format("losetup --find --show {}/data > {}", place.scratch, name));
       });
       return Thing(std::filesystem::file_size(name) > 0,
                    [name] { return RunShell(fmt::format("losetup --detach $(cat {})", name)); });
     }},
    {"nobody", false, [](const Place&) { return std::unique_ptr<Grip>(); }},
    {"an open device", false,
     [](const Place& place) { return Process([&] { return OpenAndKeep(place.target); }); }},
    {"a node of its own", false,
     [](const Place& place) {
       return Process([&] {
         struct stat info{};
         const std::string node = place.scratch + "/node";
         return stat(place.target.c_str(), &info) == 0 &&
                mknod(node.c_str(), S_IFBLK | 0600, info.st_rdev) == 0 && OpenAndKeep(node);
       });
     }},
    {"a bind in a container", false,
     [](const Place& place) {
       const std::string name = place.scratch + "/device";
       return Process([&, name] { return MakeFile(name) && Unshared(MS_SLAVE) && Bind(place.target, name); });
     }},
    {"a loop device above", false, LoopDevice},
};

// Whoever has it so is known by a name alone. Once that leads nowhere, it may be in any volume of this
// machine.
const Way kByName[] = {
    {"an overlay", true, [](const Place& place) { return Overlay(place, place.target); }},
    {"an overlay by a symlink", true,
     [](const Place& place) {
       const std::string link = place.scratch + "-link";
       return symlink(place.target.c_str(), link.c_str()) == 0 ? Overlay(place, link) : Mounted(false, "");
     }},
    {"swap", true,
     [](const Place& place) -> std::unique_ptr<Grip> {
       const std::string file = place.data;
       // A directory's file system may have none.
       if (place.kind != Kind::kImage) return Process([&] { return OpenAndKeep(file); });
       // By its name it cannot be ended once its mount was detached.
       const int fd = open(file.c_str(), O_PATH | O_CLOEXEC);
       return Thing(
           RunShell(fmt::format("mkswap -q {} >/dev/null 2>&1", file)) && swapon(file.c_str(), 0) == 0,
           [fd] { return swapoff(fmt::format("/proc/self/fd/{}", fd).c_str()) == 0 && close(fd) == 0; });
     }},
};

std::string NewDirectory(const Node& node) {
  std::string path = node.dir() + "/dXXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

Place PlaceAt(const Node& node, Kind kind, const std::string& target, const std::string& neighbour) {
  Place place{.kind = kind,
              .target = target,
              .data = kind == Kind::kBlock ? target : target + "/data",
              .scratch = NewDirectory(node),
              .neighbour = neighbour};
  if (kind != Kind::kBlock) {
    EXPECT_TRUE(RunShell(
        fmt::format("dd if=/dev/zero of={0} bs=64k count=32 2>/dev/null && chmod 600 {0}", place.data)));
  }
  return place;
}

// How it is released.
enum class Release : uint8_t { kUnpublish, kLazy, kForce };

class FaultHoldingTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    node_.WriteBerthdToml("[volumes]\nrpc_timeout = \"5s\"\n");
    // A sole writer waits for the unpublish that is under way, which may succeed.
    node_.AllowLateRefusals();
  }
  void TearDown() override {
    if (node_.running()) node_.Stop();
    for (const std::string& path : mounted_) umount2(path.c_str(), MNT_DETACH);
  }
  void Start(const std::vector<std::string>& arguments) {
    // The volumes that are directories: on the disk of the test, or on a btrfs of their own.
    if (GetParam()) {
      const std::string image = NewDirectory(node_) + "/image";
      const std::string data = node_.state_dir() + "/plugins/hostpath";
      std::filesystem::create_directories(data);
      ASSERT_TRUE(RunShell(fmt::format(
          "truncate -s 2G {0} && mkfs.btrfs -q {0} >/dev/null 2>&1 && mount -o loop {0} {1}", image, data)))
          << "this kernel has no btrfs";
      mounted_.push_back(data);
    }
    node_.WriteHostpath(arguments);
    node_.Start();
    node_.WaitReady("hostpath");
  }
  std::string Create(Kind kind) {
    v1::CreateVolumeRequest create;
    create.set_plugin_id("hostpath");
    create.set_name(fmt::format("v{}", ++volumes_));
    create.set_required_bytes(16 << 20);
    if (kind == Kind::kBlock) {
      create.add_capabilities()->set_access_type(v1::BLOCK);
    } else {
      (*create.mutable_parameters())["kind"] = kind == Kind::kImage ? "image" : "directory";
      if (kind == Kind::kImage) create.add_capabilities()->set_fs_type("ext4");
    }
    return node_.CreateVolume(create);
  }
  v1::PublishVolumeRequest Use(const std::string& volume, const std::string& consumer, Kind kind) {
    v1::PublishVolumeRequest use;
    use.set_plugin_id("hostpath");
    use.set_volume_id(volume);
    use.set_consumer(consumer);
    if (kind == Kind::kBlock) use.mutable_capability()->set_access_type(v1::BLOCK);
    return use;
  }
  std::optional<v1::Volume> PrintableName(const std::string& id) {
    const auto listed = node_.Volumes();
    for (const v1::Volume& volume : listed.volumes()) {
      if (volume.volume_id() == id) return volume;
    }
    return std::nullopt;
  }
  grpc::Status Delete(const std::string& volume) {
    v1::DeleteVolumeRequest request;
    request.set_plugin_id("hostpath");
    request.set_volume_id(volume);
    v1::DeleteVolumeResponse response;
    return node_.stub().DeleteVolume(Node::Context().get(), request, &response);
  }
  void LetGo(const std::string& volume, Release how, seconds within) {
    v1::UnpublishVolumeRequest request;
    request.set_plugin_id("hostpath");
    request.set_volume_id(volume);
    request.set_consumer("job");
    request.set_lazy(how == Release::kLazy);
    request.set_force(how == Release::kForce);
    v1::UnpublishVolumeResponse response;
    // Whether it succeeds depends on who has it.
    said_ = node_.stub().UnpublishVolume(Node::Context(within).get(), request, &response);
  }
  void ExpectHeld(const std::string& volume, Kind kind) {
    EXPECT_TRUE(PrintableName(volume).has_value());
    const grpc::Status deleted = Delete(volume);
    EXPECT_TRUE(deleted.error_code() == grpc::StatusCode::FAILED_PRECONDITION ||
                deleted.error_code() == grpc::StatusCode::UNAVAILABLE)
        << deleted.error_message();
    v1::PublishVolumeRequest sole = Use(volume, "another", kind);
    sole.mutable_capability()->set_access_mode(v1::SINGLE_NODE_SINGLE_WRITER);
    std::string target;
    EXPECT_FALSE(node_.TryPublish(sole, &target).ok()) << target;
  }
  void Restart() {
    node_.Kill();
    node_.Start();
    node_.WaitReady("hostpath");
  }
  void ExpectReleased(const std::string& volume) {
    WaitFor("the volume to be released", [&] { return !PrintableName(volume).has_value(); });
    const grpc::Status deleted = Delete(volume);
    EXPECT_TRUE(deleted.ok()) << deleted.error_message();
  }
  // Published, held, and released once that ends.
  void Hold(const Way& way, Kind kind, Release release, bool restarts) {
    SCOPED_TRACE(release == Release::kLazy    ? "detached lazily"
                 : release == Release::kForce ? "forced"
                                              : "unpublished");
    const std::string volume = Create(kind);
    const Place place = PlaceAt(node_, kind, node_.Publish(Use(volume, "job", kind)), neighbour_);
    std::unique_ptr<Grip> grip = way.take(place);
    // What is held goes on after its caller has left.
    LetGo(volume, release, seconds(grip == nullptr ? 30 : 1));
    if (grip != nullptr) {
      ExpectHeld(volume, kind);
      if (restarts) {
        Restart();
        ExpectHeld(volume, kind);
      }
      grip.reset();
    } else {
      EXPECT_TRUE(said_.ok()) << said_.error_message();
    }
    ExpectReleased(volume);
  }
  unsigned Draw(unsigned below) { return static_cast<unsigned>(random_() % below); }
  template <class Each>
  void Rounds(const Each& each) {
    const unsigned rounds = FromEnvironment("BERTH_HOLDER_ROUNDS", kRounds);
    const unsigned seed = FromEnvironment("BERTH_HOLDER_SEED", 1);
    for (unsigned i = 0; i < rounds && !HasFailure(); ++i) {
      random_.seed(seed + i);
      const Way& way = kWays[Draw(std::size(kWays))];
      const Kind kind = !way.file_system ? Kind::kBlock : Draw(2) == 0 ? Kind::kDirectory : Kind::kImage;
      SCOPED_TRACE(fmt::format("BERTH_HOLDER_SEED={}: {}, {}", seed + i, way.name,
                               kind == Kind::kImage       ? "ext4"
                               : kind == Kind::kDirectory ? "a directory"
                                                          : "a raw device"));
      each(way, kind);
    }
  }

  Node node_;
  std::string neighbour_;
  grpc::Status said_;

 private:
  std::mt19937 random_;
  std::vector<std::string> mounted_;
  int volumes_ = 0;
};

TEST_P(FaultHoldingTest, Fault47WhateverHasAVolumeItIsReleasedOnlyAfterwards) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  const std::string neighbour = Create(Kind::kDirectory);
  neighbour_ = node_.Publish(Use(neighbour, "neighbour", Kind::kDirectory));
  Rounds([&](const Way& way, Kind kind) {
    const auto release = static_cast<Release>(Draw(3));
    Hold(way, kind, release, Draw(6) == 0);
  });
}

TEST_P(FaultHoldingTest, Fault47WhoHasAVolumeByItsNameAloneHasItToo) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  for (const Way& way : kByName) {
    SCOPED_TRACE(way.name);
    const bool swap = std::string_view(way.name) == "swap";  // which a directory's file system may not have
    Hold(way, swap ? Kind::kImage : Kind::kDirectory, swap ? Release::kLazy : Release::kUnpublish, false);
  }
}

TEST_P(FaultHoldingTest, Fault47WhateverHasADeclaredVolumeItIsDetachedOnlyAfterwards) {
  ASSERT_NO_FATAL_FAILURE(Start({"--attach"}));
  const std::string file = node_.dir() + "/etc/volumes.d/data.toml";
  ASSERT_TRUE(std::filesystem::create_directories(node_.dir() + "/etc/volumes.d"));
  neighbour_ = NewDirectory(node_);
  Rounds([&](const Way& way, Kind kind) {
    const std::string volume = Create(kind);
    std::ofstream(file) << fmt::format("plugin = \"hostpath\"\nvolume = \"{}\"\n{}", volume,
                                       kind == Kind::kBlock ? "access_type = \"block\"\n" : "");
    node_.Reload();
    std::string target;
    WaitFor("it is published", [&] {
      const auto shown = PrintableName(volume);
      const bool published = shown.has_value() && shown->publications_size() == 1 &&
                             shown->publications(0).state() == v1::PUBLISHED;
      if (published) target = shown->publications(0).target_path();
      return published;
    });
    std::unique_ptr<Grip> grip = way.take(PlaceAt(node_, kind, target, neighbour_));
    ASSERT_EQ(unlink(file.c_str()), 0);
    node_.Reload();
    if (grip != nullptr) {
      WaitFor("its holder to be named", [&] {
        const auto shown = PrintableName(volume);
        return !shown.has_value() || !shown->last_error().empty();
      });
      ExpectHeld(volume, kind);
      EXPECT_TRUE(std::filesystem::exists(node_.state_dir() + "/declared"));
      grip.reset();
    }
    ExpectReleased(volume);
  });
}

INSTANTIATE_TEST_SUITE_P(Both, FaultHoldingTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "OnBtrfs" : "OnTheDisk"; });

class FaultLeaseHoldingTest : public SchedulerTest {
 protected:
  struct Held {
    std::string volume;
    std::unique_ptr<Grip> grip;
  };
  // What the node has reported of the volume's release.
  static const v1::ForcedRelease* Told(const TestScheduler::Node& node, const std::string& volume) {
    for (const auto& [number, forced_release] : node.forced_release) {
      if (forced_release.volume_id() == volume) return &forced_release;
    }
    return nullptr;
  }
};

// Another node may have them after that.
TEST_F(FaultLeaseHoldingTest, Fault47WhateverHasAVolumeOfALeaseThatRanOutItIsToldAsReleasedOnlyAfterwards) {
  StartScheduler({.lease = std::chrono::milliseconds(1500)});
  StartLinked("on_lease_expiry = \"release\"\n");
  const std::string neighbour = NewDirectory(node_);
  const unsigned rounds = (FromEnvironment("BERTH_HOLDER_ROUNDS", kRounds) + kAtOnce - 1) / kAtOnce;
  const unsigned seed = FromEnvironment("BERTH_HOLDER_SEED", 1);
  for (unsigned round = 0; round < rounds && !HasFailure(); ++round) {
    std::mt19937 random(seed + round);
    std::vector<const Way*> ways;
    while (ways.size() < kAtOnce) {
      const Way& way = kWays[random() % std::size(kWays)];
      if (way.file_system) ways.push_back(&way);
    }
    // A copy of the tree has all volumes that were published by then.
    std::ranges::sort(ways, {}, [](const Way* way) { return way == &kWays[0]; });
    std::string drawn;
    std::vector<Held> all;
    for (const Way* const way : ways) {
      drawn += fmt::format("{}{}", drawn.empty() ? "" : ", ", way->name);
      const std::string volume = CreateVolume(fmt::format("v{}-{}", round, all.size()));
      const std::string target = PublishFromAfar(volume);
      all.push_back(
          {.volume = volume, .grip = way->take(PlaceAt(node_, Kind::kDirectory, target, neighbour))});
    }
    SCOPED_TRACE(fmt::format("BERTH_HOLDER_SEED={}: {}", seed + round, drawn));
    GoAway();
    for (const Held& held : all) {
      WaitFor("the volume to be released, or the reason why not", [&] {
        const auto shown = VolumeOf(held.volume);
        return !shown.has_value() || (held.grip != nullptr && !shown->last_error().empty());
      });
    }
    ComeBack();
    scheduler_->WaitNode(kNode, "what it says of each volume", [&](const TestScheduler::Node& node) {
      return node.synced && node.state.lease() == v1::LEASE_VALID &&
             std::ranges::all_of(all, [&](const Held& held) { return Told(node, held.volume) != nullptr; });
    });
    for (Held& held : all) {
      EXPECT_EQ(VolumeOf(held.volume).has_value(), held.grip != nullptr) << held.volume;
      const TestScheduler::Node known =
          scheduler_->WaitNode(kNode, "any report", [](const auto&) { return true; });
      if (held.grip != nullptr) EXPECT_NE(Told(known, held.volume)->progress(), v1::ForcedRelease::RELEASED);
      held.grip.reset();
    }
    scheduler_->WaitNode(kNode, "all to be released", [&](const TestScheduler::Node& node) {
      return std::ranges::all_of(all, [&](const Held& held) {
        return Told(node, held.volume)->progress() == v1::ForcedRelease::RELEASED;
      });
    });
  }
}

}  // namespace
}  // namespace berth
