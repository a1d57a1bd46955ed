#!/usr/bin/env bash
# Runs in the test machine: installs the payload, runs the cases one after another, and says what became of each
# on the second serial line. Each case has a shell of its own with the functions below; it is passed when it comes
# to its end, for every command that fails ends it.
#
# A case of cases/boots has the machine for itself and is run again at each boot, $BOOT being 0 at the first. What
# it has said at the boots before is what `said` prints: that has left the machine.
set -uo pipefail

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
readonly PID_1=$(($$ == 1))
if ((PID_1)); then
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  modprobe loop
  hostname --file /etc/hostname
fi

exec >/dev/ttyS1 2>&1
stty -F /dev/ttyS1 -opost 2>/dev/null || true

CONFIG= # where berthd's files are, by its unit
declare -rx BOOTING_AGAIN=88 # exit status of a case
export BERTHD_LOG=/run/berthd.log # where there is no systemd

# --- what cases use ----------------------------------------------------------------------------------------

fail() {
  echo "    $*"
  exit 1
}

# eventually SECONDS COMMAND…: until it succeeds.
eventually() {
  local until=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < until)) || fail "did not come about in time: $*"
    sleep 0.2
  done
}

# expect WHAT GOT WANTED
expect() { [[ $2 == "$3" ]] || fail "$1: \"$2\" instead of \"$3\""; }

# expect_match WHAT GOT PATTERN (extended regular expression)
expect_match() { [[ $2 =~ $3 ]] || fail "$1: \"$2\" does not match \"$3\""; }

# A plugin file from standard input; berthd must be restarted, or reloaded, to see it.
plugin_file() { cat >"$CONFIG/plugins.d/$1.toml"; }

# The ordinary plugin, under any id: hostpath_file ID < further keys
hostpath_file() {
  {
    cat <<TOML
kind = "monolith"
command = "$(command -v berth-hostpath)"
args = ["--endpoint", "\${CSI_ENDPOINT}", "--node-id", "\${BERTH_NODE_ID}", "--state-dir", "\${BERTH_PLUGIN_DIR}"]
TOML
    cat
  } | plugin_file "$1"
}

# Without systemd.
berthd_start() {
  berthd --config "$CONFIG" >>"$BERTHD_LOG" 2>&1 &
  disown
}

berthd_restart() { systemctl restart berthd || fail 'berthd does not start'; }

# plugin_value ID FIELD
plugin_value() { berthctl plugin show "$1" -o json | jq -r ".$2 // empty"; }

plugin_pid() { plugin_value "$1" pid; }
plugin_ready() { berthctl plugin show "$1" -o json | jq -e '.state == "READY" and .registered'; }
cgroup_of() { sed -n 's/^0:://p' "/proc/$1/cgroup"; }

# volume_value ID FILTER: of jq, on the volume's JSON.
volume_value() { berthctl volume show --plugin "${3:-disk}" --volume "$1" -o json | jq -r "$2 // empty"; }

# What berthctl status finds wrong.
node_problems() { berthctl status -o json | jq -r '.problems[]?'; }

# For cases of several boots: what was said before; an orderly reboot; from now on the power may go at any moment
# of the next SECONDS, in which the case goes on.
said() { tr -d '\0\r' </dev/vdc; }
boot_again() { exit "$BOOTING_AGAIN"; }
power_may_go_within() { echo "=== cut the power within $1 s"; }

# Everything away again: plugins with their scopes, files, berthd.
clean_up() {
  rm -f -- "$CONFIG"/plugins.d/*.toml "$CONFIG/berthd.toml"
  systemctl stop berthd 2>/dev/null
  systemctl stop 'berth-plugin-*.scope' 2>/dev/null
  systemctl reset-failed 2>/dev/null
  systemctl start dbus.socket dbus.service 2>/dev/null
  rm -f /etc/systemd/system/berthd.service.d/case.conf
  systemctl daemon-reload
}

# --- running them ------------------------------------------------------------------------------------------

export -f fail eventually expect expect_match plugin_file hostpath_file berthd_start berthd_restart plugin_value plugin_pid \
  plugin_ready cgroup_of volume_value node_problems said boot_again power_may_go_within

install_payload() {
  if ((BOOT == 0)); then
    cp -a /payload/root/. / || return 1
    ((PID_1)) || systemctl daemon-reload
    sync
  fi
  CONFIG=$(sed -n 's/^ExecStart=.* --config \([^ ]*\).*/\1/p' /usr/local/lib/systemd/system/berthd.service)
  [[ -n $CONFIG ]] || return 1
  export CONFIG
  mkdir -p "$CONFIG/plugins.d" /etc/systemd/system/berthd.service.d
  systemd-sysusers /usr/local/lib/sysusers.d/*.conf
}

run_case() {
  local name began=$SECONDS status=0
  name=$(basename "$1" .sh)
  # Through a pipe: on a terminal some programs would paint.
  bash -euo pipefail "$1" </dev/null 2>&1 | cat || status=$?
  if ((status == BOOTING_AGAIN)); then
    echo '=== booting again'
    touch /run/berth-machine-orderly
    systemctl reboot
    exit 0
  elif ((status == 0)); then
    echo "=== passed $name ($((SECONDS - began)) s)"
  else
    echo "=== failed $name ($((SECONDS - began)) s)"
    echo "    --- berthd said:"
    if ((PID_1)); then tail -n 25 "$BERTHD_LOG"; else journalctl -u berthd --no-pager -o cat -n 25; fi | sed 's/^/    /'
    echo "    --- plugins:"
    berthctl status 2>&1 | sed 's/^/    /'
  fi
  [[ -n $CASE ]] || clean_up
}

# kernel_word NAME: its value on the kernel's command line.
kernel_word() { sed -n "s/.*\<berth\.$1=\([^ ]*\).*/\1/p" /proc/cmdline; }

CASE=$(kernel_word case)
BOOT=$(kernel_word boot)
BOOT=${BOOT:-0}
SEED=$(kernel_word seed)
export BOOT SEED

echo "=== $(systemctl --version | head -n 1), Linux $(uname -r), up $(cut -d. -f1 /proc/uptime) s"
if ! install_payload; then
  echo '=== failed to install the programs'
elif [[ -n $CASE ]]; then
  run_case "/payload/cases/boots/$CASE.sh"
else
  while read -r name; do run_case "/payload/cases/$name.sh"; done </payload/wanted
fi
echo '=== end'
sync
if ((PID_1)); then systemctl poweroff --force --force; else systemctl poweroff --force; fi
