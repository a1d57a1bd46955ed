#!/usr/bin/env bash
# A whole Debian machine, of this machine's release, with systemd as PID 1, a kernel of its own and cgroup v2: what
# plugins' scopes, limits and kills, reboots and power cuts are tested on. ./dev test --machine [CASE…] builds the
# programs and comes here; needs root.
#
#   base image   Debian from debootstrap, made once, in build/machine; each machine sees it as it was made
#   payload      the programs as built, the cases, and guest.sh, which runs them; made again for each run
#   cases/       all in one machine, one after another
#   cases/boots/ each in a machine of its own that boots more than once. A case asks for an orderly reboot, or for
#                its power to be cut at a random moment; its disk (berth-test-disk) then loses what was not flushed.
#                BERTH_MACHINE_SEED=N repeats the choices of a run.
#
# BERTH_MACHINE_ACCEL=kvm or tcg chooses between KVM and software emulation, with which a boot takes half a minute.
# The default, auto, boots a kernel under KVM once, and takes emulation where that fails.
#
# The console is in build/machine/console.log, what the cases said in build/machine/cases.log. Exit status 1: a case
# failed, or the machine did not come to its end.
set -euo pipefail

# Whatever is mounted here is mounted for this script alone, and goes with it.
if [[ ${1:-} != --in-namespace ]]; then
  ((EUID == 0)) || { echo 'machine: needs root' >&2 && exit 1; }
  SELF=$(realpath "${BASH_SOURCE[0]}")
  if unshare --mount --propagation private true 2>/dev/null; then
    exec unshare --mount --propagation private "$SELF" --in-namespace "$@"
  fi
  # A chroot's root is no mount point and cannot be made private; a copy of it, mounted over /proc, can.
  # shellcheck disable=SC2016 # expanded by the inner shell
  exec unshare --mount --propagation unchanged bash -c 'mount --make-private /proc && mount --rbind / /proc &&
    mount --make-rprivate /proc && exec chroot /proc "$@"' machine "$SELF" --in-namespace "$@"
fi
shift

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly HERE
readonly ROOT=${HERE%/tests/machine}
readonly BUILT=${BERTH_BUILD:-$ROOT/build/dev}
readonly OUT=$ROOT/build/machine
readonly INSIDE=$OUT/inside # where an image is mounted while it is filled
SUITE=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
readonly SUITE
readonly MIRROR=${BERTH_DEBIAN_MIRROR:-http://deb.debian.org/debian}
# Longer than all of cases/, or one of cases/boots/, takes under emulation on two busy cores.
readonly TIME_LIMIT=${BERTH_MACHINE_TIME_LIMIT:-2400}
readonly KVM_PROBE_LIMIT=30 # seconds; a boot as far as that takes two
SEED=${BERTH_MACHINE_SEED:-$((RANDOM * 32768 + RANDOM))}
readonly SEED
ACCEL=${BERTH_MACHINE_ACCEL:-auto} # kvm or tcg once choose_accelerator has run

# Of the machine itself, and what the cases use. The programs' libraries are found out by themselves.
readonly PACKAGES=(
  systemd-sysv dbus udev kmod linux-image-cloud-amd64 initramfs-tools
  e2fsprogs iproute2 jq mount nfs-common nfs-kernel-server procps psmisc util-linux xfsprogs
)
# Words for the kernel and systemd, that leave out of the boot what takes long and no case needs.
readonly QUICK_BOOT=(
  mitigations=off systemd.show_status=no systemd.unit=multi-user.target
  systemd.mask=systemd-{logind,user-sessions,update-utmp,update-utmp-runlevel}.service
)
# What the cases run besides what is installed.
readonly TEST_PROGRAMS=(bin/berth-fault-plugin tests/berth-test-nfs-plugin tests/plugin_cgroup_test
  tests/mount_test tests/mounter_test)

say() { printf '%s\n' "$*" >&2; }

die() {
  say "machine: $*"
  exit 1
}

# --- the base image ----------------------------------------------------------------------------------------

# fill_image FILE SIZE: an empty file system in a new file, mounted at $INSIDE.
fill_image() {
  : >"$1"
  truncate -s "$2" "$1"
  mkfs.ext4 -q -F "$1"
  mkdir -p "$INSIDE"
  mount -o loop "$1" "$INSIDE"
}

# The packages of the libraries that the programs and tests need.
library_packages() {
  local file
  for file in "$BUILT"/bin/berth{d,ctl,-hostpath,-mount-helper} "${TEST_PROGRAMS[@]/#/"$BUILT/"}"; do
    ldd "$file"
  done | awk '$3 ~ /^\// { print $3 }' | sort -u | xargs -r readlink -f |
    xargs -r dpkg-query --search 2>/dev/null | cut -d: -f1 | sort -u
}

make_base() {
  local include stamp program
  for program in bin/berth{d,ctl,-hostpath,-mount-helper} "${TEST_PROGRAMS[@]}"; do
    [[ -x $BUILT/$program ]] || die "$program is not built"
  done
  local -a libraries
  mapfile -t libraries < <(library_packages)
  include=$(printf '%s\n' "${PACKAGES[@]}" "${libraries[@]}" | sort -u | paste -sd,)
  # A change of what is in it, or of how it is made, makes another.
  stamp="$SUITE $MIRROR $include $(sed -n '/^make_base/,/^}/p' "$HERE/machine.sh" | sha256sum)"
  if [[ -f $OUT/base.img && $(cat "$OUT/base.stamp" 2>/dev/null) == "$stamp" ]]; then return 0; fi

  say "==> making the base image (some minutes, once): build/machine/debootstrap.log"
  fill_image "$OUT/base.new" 3G
  debootstrap --variant=minbase --include="$include" "$SUITE" "$INSIDE" "$MIRROR" >"$OUT/debootstrap.log" 2>&1 ||
    die "debootstrap failed: see build/machine/debootstrap.log"

  printf 'berth-machine\n' >"$INSIDE/etc/hostname"
  printf '127.0.0.1 localhost berth-machine\n' >"$INSIDE/etc/hosts"
  printf '/dev/vda / ext4 rw 0 1\n' >"$INSIDE/etc/fstab"
  : >"$INSIDE/etc/machine-id"
  mkdir -p "$INSIDE/payload"
  # Nothing runs that no case needs; what a case needs it starts itself.
  mkdir -p "$INSIDE/etc/systemd/system-preset"
  printf 'disable *\n' >"$INSIDE/etc/systemd/system-preset/00-berth-machine.preset"
  systemctl --root="$INSIDE" preset-all 2>>"$OUT/debootstrap.log"
  ln -sf /dev/null "$INSIDE/etc/systemd/system/getty@tty1.service"
  ln -sf /dev/null "$INSIDE/etc/systemd/system/serial-getty@ttyS0.service"
  cat >"$INSIDE/etc/systemd/system/berth-machine.service" <<'UNIT'
[Unit]
Description=The cases of Berth's test machine
After=basic.target dbus.service systemd-logind.service
[Service]
Type=exec
ExecStart=/bin/sh -c 'mount -o ro /dev/vdb /payload && exec /payload/guest.sh'
StandardOutput=journal
StandardError=journal
# Whatever happens, the machine comes to its end: at once, but where a case wants an orderly shutdown.
ExecStopPost=/bin/sh -c '[ -e /run/berth-machine-orderly ] || systemctl poweroff --force'
KillMode=process
TasksMax=infinity
[Install]
WantedBy=multi-user.target
UNIT
  mkdir -p "$INSIDE/etc/systemd/system/multi-user.target.wants"
  ln -sf ../berth-machine.service "$INSIDE/etc/systemd/system/multi-user.target.wants/berth-machine.service"

  # A small first file system in memory: it is unpacked at each boot.
  printf 'MODULES=list\n' >"$INSIDE/etc/initramfs-tools/conf.d/berth-machine"
  printf 'virtio_pci\nvirtio_blk\next4\n' >>"$INSIDE/etc/initramfs-tools/modules"
  chroot "$INSIDE" update-initramfs -u >>"$OUT/debootstrap.log" 2>&1 || die 'no initramfs'
  cp -L -- "$INSIDE/vmlinuz" "$OUT/vmlinuz"
  cp -L -- "$INSIDE/initrd.img" "$OUT/initrd.img"
  umount --recursive "$INSIDE"
  mv -- "$OUT/base.new" "$OUT/base.img"
  printf '%s\n' "$stamp" >"$OUT/base.stamp"
}

# --- the payload -------------------------------------------------------------------------------------------

# make_payload CASE…: those that the first machine runs.
make_payload() {
  local program
  fill_image "$OUT/payload.img" 1G
  mkdir -p "$INSIDE/tests" "$INSIDE/root/usr/bin"
  DESTDIR=$INSIDE/root cmake --install "$BUILT" --strip >"$OUT/install.log" 2>&1 || {
    tail -n 5 "$OUT/install.log" >&2
    die 'the programs could not be installed: see build/machine/install.log'
  }
  for program in "${TEST_PROGRAMS[@]}"; do
    strip -o "$INSIDE/root/usr/bin/${program##*/}" "$BUILT/$program"
  done
  cp -R -- "$HERE/guest.sh" "$HERE/cases" "$ROOT/README.md" "$INSIDE/"
  printf '%s\n' "$@" >"$INSIDE/wanted"
  umount "$INSIDE"
}

# --- the machine -------------------------------------------------------------------------------------------

# kvm_works: whether the machine's kernel runs under KVM until it finds that it has no root file system. It then
# panics, which ends the emulator. An internal error of KVM stops the machine, but not the emulator: hence the limit.
kvm_works() {
  { # the shell says here too how the emulator ended
    timeout --kill-after=5 "$KVM_PROBE_LIMIT" qemu-system-x86_64 \
      -accel kvm -cpu max -smp 2 -m 512 -nodefaults -display none -no-reboot \
      -kernel "$OUT/vmlinuz" -append 'console=ttyS0 panic=-1' -serial stdio </dev/null
  } >"$OUT/kvm.log" 2>&1 && grep -q 'Unable to mount root fs' "$OUT/kvm.log"
}

choose_accelerator() {
  [[ $ACCEL == auto ]] || return 0
  ACCEL=tcg
  if [[ ! -e /dev/kvm ]]; then
    say '==> there is no /dev/kvm: the machine is emulated in software'
  elif kvm_works; then
    ACCEL=kvm
  else
    say '==> KVM does not work here (build/machine/kvm.log): the machine is emulated in software'
  fi
}

# run_machine WORDS-FOR-THE-KERNEL DISK…: until it ends by itself, or a case asks for its power to be cut. What the
# cases say is shown as it comes. OUTCOME: ended, cut, or late.
run_machine() {
  local kernel=$1 machine shown count line until=$((SECONDS + TIME_LIMIT)) cut_at=
  shift
  shown=$(wc -l <"$OUT/cases.log")
  TMPDIR=$OUT setpriv --pdeathsig KILL qemu-system-x86_64 \
    -accel "$ACCEL" -cpu max -smp 2 -m 1536 -nodefaults -display none -no-reboot \
    -kernel "$OUT/vmlinuz" -initrd "$OUT/initrd.img" \
    -append "root=/dev/vda rw console=ttyS0 quiet panic=-1 ${QUICK_BOOT[*]} $kernel" \
    "$@" \
    -chardev "file,id=console,path=$OUT/console.log,append=on" -serial chardev:console \
    -chardev "file,id=cases,path=$OUT/cases.log,append=on" -serial chardev:cases </dev/null &
  machine=$!
  OUTCOME=ended
  while kill -0 "$machine" 2>/dev/null; do
    read -r -t 0.2 <> <(:) || true
    count=$(wc -l <"$OUT/cases.log")
    while ((shown < count)); do
      shown=$((shown + 1))
      line=$(sed -n "${shown}p" "$OUT/cases.log" | tr -d '\r')
      printf '%s\n' "$line"
      # "=== cut the power within N s"
      if [[ $line =~ ^===\ cut\ the\ power\ within\ ([0-9]+)\ s$ ]]; then
        cut_at=$(($(milliseconds) + RANDOM * BASH_REMATCH[1] * 1000 / 32768))
      fi
    done
    if [[ -n $cut_at ]] && (($(milliseconds) >= cut_at)); then
      OUTCOME='cut'
    elif ((SECONDS >= until)); then
      OUTCOME=late
    else
      continue
    fi
    kill -KILL "$machine"
    break
  done
  wait "$machine" 2>/dev/null || [[ $OUTCOME != ended ]] || say "machine: the emulator ended with status $?"
  sed -n "$((shown + 1)),\$p" "$OUT/cases.log" | tr -d '\r'
}

milliseconds() { printf '%s' $((${EPOCHREALTIME/./} / 1000)); }

readonly PAYLOAD=(-drive "file=$OUT/payload.img,if=virtio,format=raw,readonly=on")

give_up() {
  tail -n 30 "$OUT/console.log" >&2
  die "$1; the end of the machine's console is above"
}

# All of cases/ that are wanted.
run_together() {
  say "==> booting: build/machine/console.log"
  run_machine '' -drive "file=$OUT/base.img,if=virtio,format=raw,snapshot=on" "${PAYLOAD[@]}"
  grep -q '^=== end' "$OUT/cases.log" || give_up "the machine did not come to its end within $TIME_LIMIT s"
}

# The last thing that a case or its machine said of itself.
last_mark() { grep '^=== ' "$OUT/cases.log" | grep -v '^=== end' | tail -n 1 | tr -d '\r'; }

# run_boots CASE: with a disk that remembers from boot to boot. Each boot sees, as its third disk, what the case has
# said before: what it said is what has left the machine.
run_boots() {
  local name=$1 boot=0 disk began=$SECONDS from init=
  say "==> booting for $name"
  if grep -q '^# Without systemd' "$HERE/cases/boots/$name.sh"; then
    init='init=/bin/sh -- -c "mount --read-only /dev/vdb /payload && exec /payload/guest.sh"' # the option ro would be the root's
  fi
  RANDOM=$SEED
  from=$(wc -l <"$OUT/cases.log")
  unlink "$OUT/disk.sock" 2>/dev/null || true # of a run before
  setpriv --pdeathsig KILL "$BUILT/tests/berth-test-disk" \
    --image "$OUT/base.img" --changes "$OUT/changes.img" --socket "$OUT/disk.sock" --seed "$SEED" &
  disk=$!
  until [[ -S $OUT/disk.sock ]]; do
    kill -0 "$disk" || die 'berth-test-disk has ended'
  done
  while ((SECONDS - began < TIME_LIMIT)); do
    sed -n "$((from + 1)),\$p" "$OUT/cases.log" >"$OUT/said.img"
    truncate -s '%512' "$OUT/said.img"
    [[ -s $OUT/said.img ]] || truncate -s 512 "$OUT/said.img"
    run_machine "berth.case=$name berth.boot=$boot berth.seed=$((SEED + boot)) $init" \
      -drive "file=nbd:unix:$OUT/disk.sock,if=virtio,format=raw,cache=writeback" "${PAYLOAD[@]}" \
      -drive "file=$OUT/said.img,if=virtio,format=raw,readonly=on"
    if [[ $OUTCOME == cut && $(last_mark) != '=== failed '* ]]; then
      printf '\n=== the power was cut\n' >>"$OUT/cases.log"
    elif [[ $OUTCOME != ended || $(last_mark) != '=== booting again' ]]; then
      break
    fi
    boot=$((boot + 1))
  done
  kill "$disk"
  wait "$disk" || true
  [[ $(last_mark) =~ ^===\ (passed|failed)\ $name\  ]] || give_up "$name did not come to its end in $((boot + 1)) boots"
}

main() {
  local name began=$SECONDS part passed failed
  local -a together=() boots=()
  [[ $ACCEL =~ ^(auto|kvm|tcg)$ ]] || die "BERTH_MACHINE_ACCEL is '$ACCEL': it must be auto, kvm or tcg"
  mkdir -p "$OUT"
  shopt -s nullglob
  for name in "$HERE"/cases/*.sh "$HERE"/cases/boots/*.sh; do
    for part in "${@:-}"; do
      [[ ${name##*/} == *"$part"* ]] || continue
      if [[ $name == */boots/* ]]; then boots+=("$(basename "$name" .sh)"); else together+=("$(basename "$name" .sh)"); fi
      break
    done
  done
  ((${#together[@]} + ${#boots[@]} > 0)) || die "no case is called $*"
  make_base
  choose_accelerator
  make_payload "${together[@]}"
  : >"$OUT/console.log"
  : >"$OUT/cases.log"
  ((${#together[@]} == 0)) || run_together
  ((${#boots[@]} == 0)) || say "==> seed $SEED"
  for name in "${boots[@]}"; do run_boots "$name"; done
  passed=$(grep -c '^=== passed' "$OUT/cases.log" || true)
  failed=$(grep -c '^=== failed' "$OUT/cases.log" || true)
  say "==> $passed passed, $failed failed, in $((SECONDS - began)) s"
  ((failed == 0 && passed == ${#together[@]} + ${#boots[@]})) || exit 1
}

main "$@"
