#!/usr/bin/env bash
# FAULTS 6: a plugin takes memory without end. Its own limit ends all of it; the reason is shown; no other plugin is hurt.
mkdir -p /run/case
cat >/run/case/faults.toml <<'TOML'
[[rule]]
name = "takes all the memory there is"
rpc = "ControllerGetCapabilities"
action = "memory"
bytes = 400000000
TOML
: >/run/case/nothing.toml
fault_file() {
  plugin_file "$1" <<TOML
kind = "monolith"
command = "/usr/bin/berth-fault-plugin"
args = ["--script", "/run/case/$2", "--endpoint", "\${CSI_ENDPOINT}", "--node-id", "\${BERTH_NODE_ID}",
  "--state-dir", "\${BERTH_PLUGIN_DIR}"]
[limits]
memory = "128MiB"
[restart]
policy = "never"
TOML
}
cp /run/case/nothing.toml /run/case/now.toml
fault_file hog now.toml
hostpath_file bystander </dev/null
berthd_restart
eventually 120 plugin_ready hog
eventually 120 plugin_ready bystander
bystander=$(plugin_pid bystander)
berthd=$(systemctl show -P MainPID berthd)

mv /run/case/faults.toml /run/case/now.toml
socket=$(plugin_value hog socket_path)
berthctl csi --endpoint "unix://$socket" controller get-capabilities >/dev/null || true

reported() { berthctl plugin show hog | grep -qi 'out of memory'; }
eventually 120 reported
expect_match 'the limit in the reason' "$(berthctl plugin show hog)" '128 ?MiB'
expect_match 'what the kernel said' "$(dmesg)" 'oom-kill:constraint=CONSTRAINT_MEMCG'
expect 'the pid of the other plugin' "$(plugin_pid bystander)" "$bystander"
expect 'the pid of berthd' "$(systemctl show -P MainPID berthd)" "$berthd"
eventually 20 test ! -e /sys/fs/cgroup/berth.slice/berth-plugins.slice/berth-plugin-hog.scope
plugin_ready bystander >/dev/null
