#!/usr/bin/env bash
# FAULTS 24: a real NFS server goes away under a mount that a plugin made. Other volumes go on; the hung one is shown as
# hung, not as dead, and who keeps it from being released; berthd is killed and replaced meanwhile. The volume is released
# when the server is back, with what was written to it, or by force. Where the plugin hangs in it by itself and keeps its
# lock, it is released once the plugin is restarted. What the kernel still has to write after the last unmount is not
# called free.
readonly SERVER=10.77.0.2

# The server has a network of its own, with one cable to it.
ip netns add server
ip link add cable type veth peer name eth0 netns server
ip address add 10.77.0.1/24 dev cable
ip link set cable up
ip -n server address add "$SERVER/24" dev eth0
server_dies() { ip -n server link set eth0 down; }
server_is_back() { ip -n server link set eth0 up; }
server_is_back
# Whatever happens, nothing hangs after this.
trap 'server_is_back; umount --all --types nfs4 --force || true' EXIT
mkdir -p /srv/share
modprobe nfsd
# shellcheck disable=SC2016 # expanded by the inner shell
ip netns exec server bash -euc '
  mount -t nfsd nfsd /proc/fs/nfsd
  exportfs -o rw,no_root_squash,no_subtree_check,fsid=0 "10.77.0.0/24:/srv/share"
  rpc.nfsd --grace-time 10 --lease-time 10 --no-nfs-version 3 2
  exec rpc.mountd --foreground --no-nfs-version 3' >/run/mountd.log 2>&1 &
mountd=$!
serves() { grep -q . <(ip netns exec server ss -Htln 'sport = :2049'); }
eventually 60 serves
# The first that asks a server may ask before it knows its clients.
answers() { timeout 10 mount -t nfs4 -o vers=4.2 "$SERVER:/" /mnt && umount /mnt; }
eventually 120 answers

cat >"$CONFIG/berthd.toml" <<'TOML'
[volumes]
health_interval = "2s"
rpc_timeout = "10s"
TOML
plugin_file nfs <<'TOML'
kind = "node"
command = "/usr/bin/berth-test-nfs-plugin"
args = ["--hang-file", "/run/case-hang"]
TOML
hostpath_file disk </dev/null
berthd_restart
eventually 120 plugin_ready nfs
eventually 120 plugin_ready disk

# Attributes are kept for one second: a look at the mount asks the server.
publish_share() {
  berthctl volume publish --plugin nfs --volume share --consumer job --context "server=$SERVER" --context share=/ \
    --mount-flag vers=4.2,hard,actimeo=1
}
# unpublish_share [OPTION…]
unpublish_share() { timeout 180 berthctl volume unpublish --plugin nfs --volume share --consumer job "$@"; }
share() { volume_value share "$1" nfs; }
# One that hangs may answer again: it is not dead.
is_hung() { [[ -n $(share '.publications[0].hung') && -z $(share '.publications[0].dead') ]]; }
is_well() { [[ -z $(share '.publications[0].hung') ]]; }
plugin_hangs() { [[ $(share .stuck.plugin_hangs) == true ]]; }
names_the_writer() { [[ $(share .last_error) == *"pid $writer "* ]]; }
has_gone() { [[ $(berthctl volumes --plugin nfs -o json | jq '.volumes | length') == 0 ]]; }
not_mounted() { ! grep -qF "$target" /proc/self/mountinfo; }

# others_go_on WHEN: a volume of another plugin is made, published, used, unpublished and deleted.
others_go_on() {
  local id path began=$SECONDS
  id=$(timeout 120 berthctl volume create --plugin disk --size 16MiB --fs ext4 "other") || fail "$1: no create"
  path=$(timeout 120 berthctl volume publish --plugin disk --volume "$id" --consumer other --fs ext4) ||
    fail "$1: another volume is not published"
  echo data >"$path/file"
  timeout 120 berthctl volume unpublish --plugin disk --volume "$id" --consumer other >/dev/null ||
    fail "$1: another volume is not unpublished"
  timeout 120 berthctl volume delete --plugin disk "$id" >/dev/null || fail "$1: another volume is not deleted"
  echo "    $1: another volume came and went in $((SECONDS - began)) s"
}

# A page, so that nothing has to be read before it is written.
page_of() { printf '%-4095s\n' "$1"; }
writer_has_ended() { ! kill -0 "$writer"; }
contents() { sed 's/ *$//' "$1"; }

# What a program is writing when the server dies: it waits until what it wrote is there, and ends. It alone has the
# file open, for closing it waits too.
# write_and_wait TEXT
write_and_wait() {
  mkfifo /run/case-line
  {
    exec 9<>"$target/file"
    read -r line </run/case-line
    page_of "$line" >&9
    sync --data /dev/fd/9
  } >/run/writer.log 2>&1 &
  writer=$!
  # It is read once the file is open.
  exec 8>/run/case-line
  server_dies
  echo "$1" >&8
  exec 8>&-
  rm -f /run/case-line
}

# What a program has written when the server dies, and no process waits for: write_without_saving TEXT
write_without_saving() {
  local writer
  mkfifo /run/case-line
  berth-test-nfs-plugin --leave-dirty "$target/file" </run/case-line >/run/case-ready &
  writer=$!
  exec 9>/run/case-line
  eventually 60 grep -q ready /run/case-ready
  server_dies
  echo "$1" >&9
  exec 9>&-
  wait "$writer" || fail 'nothing was written'
  rm -f /run/case-line /run/case-ready
}

target=$(publish_share) || fail "the share was not mounted: $(cat /run/mountd.log; dmesg | tail -n 5)"
expect 'the type of what is mounted' "$(findmnt -rno FSTYPE "$target")" nfs4
page_of first >"$target/file"
sync "$target/file"
others_go_on 'while the server lives'

echo '    the server dies while a program writes'
write_and_wait second
eventually 120 is_hung
others_go_on 'while a mount hangs'
expect_match 'its advice' "$(share .advice)" 'bring its server back'
! grep -qF volume.dead <(berthctl events --volume share) || fail 'it was called dead'

# Its user waits in it: it is not taken away from under him.
! unpublish_share --timeout 5s >/dev/null || fail 'it was released, with the server away'
eventually 120 names_the_writer
expect_match 'berthctl volumes' "$(berthctl volumes --plugin nfs)" 'hung|stuck'
others_go_on 'while it cannot be released'

pid=$(systemctl show -P MainPID berthd)
systemctl kill --signal=KILL --kill-who=main berthd
replaced() { systemctl is-active berthd && [[ $(systemctl show -P MainPID berthd) != "$pid" ]] && berthctl plugins; }
eventually 120 replaced
eventually 120 plugin_ready disk
others_go_on 'with a new berthd'
! has_gone || fail 'the new berthd took the volume for released, with the server away'
eventually 120 names_the_writer

echo '    the server is back'
server_is_back
eventually 120 writer_has_ended
wait "$writer" || fail "the program could not write: $(cat /run/writer.log)"
eventually 180 has_gone
not_mounted || fail 'it is still mounted'
expect 'what the server has' "$(contents /srv/share/file)" second
expect "the nfs plugin's state" "$(plugin_value nfs state)" READY

# By force, with the server away for good.
target=$(publish_share)
expect 'the file' "$(contents "$target/file")" second
echo '    the server dies again'
write_and_wait third
eventually 120 is_hung
# What hangs gets an error and ends its use. The last unmount waits for the server too, for as long as the kernel will.
eventually 240 unpublish_share --force --yes
has_gone || fail 'it is still listed'
not_mounted || fail 'it is still mounted'
eventually 60 writer_has_ended
! wait "$writer" || fail 'the program got no error for its write'
others_go_on 'after the release by force'
server_is_back
expect 'what the server has' "$(contents /srv/share/file)" second

# It answers again while nothing was done about it.
target=$(publish_share)
expect 'the file' "$(contents "$target/file")" second
echo '    the server goes away, and comes back'
server_dies
eventually 120 is_hung
server_is_back
eventually 120 is_well
grep -qF volume.alive <(berthctl events --volume share) || fail 'no event says that it answers again'

# The way out where the plugin itself hangs, and keeps its lock.
echo '    the server goes away, and the plugin hangs by itself'
server_dies
touch /run/case-hang
! unpublish_share --lazy --yes --timeout 40s >/dev/null 2>/run/case-said || fail 'it was released, while the plugin hangs'
rm -f /run/case-hang
expect_match 'what the command says' "$(cat /run/case-said)" 'was detached'
expect_match 'the next step' "$(cat /run/case-said)" 'berthctl plugin restart nfs'
not_mounted || fail 'it is still mounted'
eventually 60 plugin_hangs
expect_match 'berthctl explain' "$(berthctl volume explain --plugin nfs share)" 'berthctl plugin restart nfs'
timeout 120 berthctl plugin restart nfs
server_is_back
eventually 180 has_gone

# It is not in use, but the kernel still has a page to write.
target=$(publish_share)
expect 'the file' "$(contents "$target/file")" second
echo '    the server dies with data that no process waits for'
write_without_saving fourth
answer=$(unpublish_share -o json)
not_mounted || fail 'it is still mounted'
expect 'whether it is called free' "$(jq .still_in_use <<<"$answer")" true
grep -qF 'not released' <(berthctl events --volume share | grep -F volume.still_in_use) || fail 'no event says that it is not free'
expect 'what the server has' "$(contents /srv/share/file)" second
server_is_back
has_arrived() { [[ $(contents /srv/share/file) == fourth ]]; }
eventually 120 has_arrived

target=$(publish_share)
expect 'the file' "$(contents "$target/file")" fourth
answer=$(unpublish_share -o json)
expect 'whether it is called free' "$(jq '.still_in_use // false' <<<"$answer")" false
has_gone || fail 'it is still listed'
kill "$mountd"
