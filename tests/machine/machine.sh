#!/usr/bin/env bash
# A whole Debian 12 machine, with systemd as PID 1, a kernel of its own and cgroup v2: what plugins' scopes, limits
# and kills are tested on. ./dev test --machine [CASE…] builds the programs and comes here; needs root.
#
#   base image   Debian from debootstrap, made once, in build/machine; each run sees it as it was made
#   payload      the programs as built, the cases, and guest.sh, which runs them; made anew for each run
#
# The machine is emulated where there is no KVM: it boots in half a minute then. Its console is in
# build/machine/console.log, what the cases said in build/machine/cases.log. Exit status 1: a case failed, or the
# machine did not come to its end.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly HERE
readonly ROOT=${HERE%/tests/machine}
readonly BUILT=${BERTH_BUILD:-$ROOT/build/dev}
readonly OUT=$ROOT/build/machine
readonly SUITE=bookworm
readonly MIRROR=${BERTH_DEBIAN_MIRROR:-http://deb.debian.org/debian}
# Longer than all cases take under emulation on two busy cores.
readonly TIME_LIMIT=${BERTH_MACHINE_TIME_LIMIT:-1500}

# Of the machine itself, and what the cases use. The programs' libraries are found out by themselves.
readonly PACKAGES=(
  systemd-sysv dbus udev kmod linux-image-cloud-amd64 initramfs-tools
  e2fsprogs iproute2 jq mount nfs-common nfs-kernel-server procps psmisc util-linux xfsprogs
)

say() { printf '%s\n' "$*" >&2; }

die() {
  say "machine: $*"
  exit 1
}

# Removes a directory of ours in which nothing is mounted.
remove_tree() {
  [[ $1 == "$OUT"/* ]] || die "will not remove $1"
  [[ -d $1 ]] || return 0
  ! findmnt --noheadings --raw --output TARGET | grep -qE "^$(realpath -- "$1")(/|$)" ||
    die "will not remove $1: something is mounted in it"
  find "$1" -xdev -delete # nothing is mounted in it
}

# --- the base image ----------------------------------------------------------------------------------------

# The packages of the libraries that the programs and tests need.
library_packages() {
  local file
  for file in "$BUILT"/bin/* "$BUILT"/tests/plugin_place_test; do
    [[ ! -x $file ]] || ldd "$file" 2>/dev/null
  done | awk '$3 ~ /^\// { print $3 }' | sort -u | xargs -r readlink -f | xargs -r dpkg-query --search 2>/dev/null |
    cut -d: -f1 | sort -u
}

make_base() {
  local include stamp new=$OUT/root.new
  local -a libraries
  mapfile -t libraries < <(library_packages)
  include=$(printf '%s\n' "${PACKAGES[@]}" "${libraries[@]}" | sort -u | paste -sd,)
  # A change of what is in it, or of how it is made, makes another.
  stamp="$SUITE $MIRROR $include $(sed -n '/^make_base/,/^}/p' "$HERE/machine.sh" | sha256sum)"
  if [[ -f $OUT/base.img && $(cat "$OUT/base.stamp" 2>/dev/null) == "$stamp" ]]; then return 0; fi

  say "==> making the base image (some minutes, once): build/machine/debootstrap.log"
  rm -f -- "$OUT/base.stamp" "$OUT/base.img"
  remove_tree "$new"
  debootstrap --variant=minbase --include="$include" "$SUITE" "$new" "$MIRROR" >"$OUT/debootstrap.log" 2>&1 ||
    die "debootstrap failed: see build/machine/debootstrap.log"
  ! grep -q " $new" /proc/self/mountinfo || die "debootstrap left something mounted beneath $new"

  printf 'berth-machine\n' >"$new/etc/hostname"
  printf '127.0.0.1 localhost berth-machine\n' >"$new/etc/hosts"
  printf '/dev/vda / ext4 rw 0 1\n' >"$new/etc/fstab"
  : >"$new/etc/machine-id"
  mkdir -p "$new/payload"
  ln -sf /dev/null "$new/etc/systemd/system/getty@tty1.service"
  ln -sf /dev/null "$new/etc/systemd/system/serial-getty@ttyS0.service"
  # What a case needs of NFS it starts itself.
  find "$new/etc/systemd/system" -path '*.wants/*' \( -name 'nfs*' -o -name 'rpc*' \) -delete # links
  cat >"$new/etc/systemd/system/berth-machine.service" <<'UNIT'
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
  mkdir -p "$new/etc/systemd/system/multi-user.target.wants"
  ln -sf ../berth-machine.service "$new/etc/systemd/system/multi-user.target.wants/berth-machine.service"

  cp -L -- "$new/vmlinuz" "$OUT/vmlinuz"
  cp -L -- "$new/initrd.img" "$OUT/initrd.img"
  truncate -s 3G "$OUT/base.img"
  mkfs.ext4 -q -F -d "$new" "$OUT/base.img"
  remove_tree "$new"
  printf '%s\n' "$stamp" >"$OUT/base.stamp"
}

# --- the payload -------------------------------------------------------------------------------------------

make_payload() {
  local stage=$OUT/payload size
  remove_tree "$stage"
  mkdir -p "$stage/tests"
  DESTDIR=$stage/root cmake --install "$BUILT" >"$OUT/install.log" 2>&1 || {
    tail -n 5 "$OUT/install.log" >&2
    die 'the programs could not be installed: see build/machine/install.log'
  }
  # A program for tests, which is not installed.
  mkdir -p "$stage/root/usr/bin"
  [[ ! -x $BUILT/bin/berth-fault-plugin ]] || cp -- "$BUILT/bin/berth-fault-plugin" "$stage/root/usr/bin/"
  cp -- "$BUILT/tests/plugin_place_test" "$stage/tests/"
  cp -R -- "$HERE/guest.sh" "$HERE/cases" "$stage/"
  printf '%s\n' "$@" >"$stage/wanted"
  size=$(du -sm "$stage" | cut -f1)
  truncate -s "$((size + size / 4 + 32))M" "$OUT/payload.img"
  mkfs.ext4 -q -F -d "$stage" "$OUT/payload.img"
  remove_tree "$stage"
}

# --- the machine -------------------------------------------------------------------------------------------

boot() {
  : >"$OUT/console.log"
  : >"$OUT/cases.log"
  local accelerator=tcg
  [[ ! -w /dev/kvm ]] || accelerator=kvm
  say "==> booting ($accelerator): build/machine/console.log"
  TMPDIR=$OUT timeout --kill-after=10 "$TIME_LIMIT" qemu-system-x86_64 \
    -accel "$accelerator" -cpu max -smp 2 -m 1536 -nodefaults -display none -no-reboot \
    -kernel "$OUT/vmlinuz" -initrd "$OUT/initrd.img" \
    -append 'root=/dev/vda rw console=ttyS0 quiet panic=-1 systemd.show_status=no' \
    -drive "file=$OUT/base.img,if=virtio,format=raw,snapshot=on" \
    -drive "file=$OUT/payload.img,if=virtio,format=raw,readonly=on" \
    -serial "file:$OUT/console.log" -serial "file:$OUT/cases.log" </dev/null &
  local machine=$! shown=0 count
  while kill -0 "$machine" 2>/dev/null; do
    read -r -t 1 <> <(:) || true
    count=$(wc -l <"$OUT/cases.log")
    ((count == shown)) || sed -n "$((shown + 1)),${count}p" "$OUT/cases.log" | tr -d '\r'
    shown=$count
  done
  wait "$machine" || say "machine: the emulator ended with status $?"
  sed -n "$((shown + 1)),\$p" "$OUT/cases.log" | tr -d '\r'
}

main() {
  ((EUID == 0)) || die 'needs root'
  mkdir -p "$OUT"
  local began=$SECONDS
  make_base
  make_payload "$@"
  boot
  if ! grep -q '^=== end' "$OUT/cases.log"; then
    tail -n 30 "$OUT/console.log" >&2
    die "the machine did not come to its end within $TIME_LIMIT s; the end of its console is above"
  fi
  local passed failed
  passed=$(grep -c '^=== passed' "$OUT/cases.log" || true)
  failed=$(grep -c '^=== failed' "$OUT/cases.log" || true)
  say "==> $passed passed, $failed failed, in $((SECONDS - began)) s"
  ((failed == 0 && passed > 0)) || exit 1
}

main "$@"
