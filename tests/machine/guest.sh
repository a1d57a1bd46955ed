#!/usr/bin/env bash
# Runs in the test machine: installs the payload, runs the cases one after another, and says what became of each
# on the second serial line. cases/*.sh are read into a shell of their own with the functions below; a case is
# passed when it comes to its end, for every command that fails ends it.
set -uo pipefail

exec >/dev/ttyS1 2>&1
stty -F /dev/ttyS1 -opost 2>/dev/null || true

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8

CONFIG= # where berthd's files are, by its unit

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

# A plugin file from standard input; berthd must be restarted, or told, to see it.
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

berthd_restart() { systemctl restart berthd || fail 'berthd does not start'; }

# plugin_value ID FIELD
plugin_value() { berthctl plugin show "$1" -o json | jq -r ".$2 // empty"; }

plugin_pid() { plugin_value "$1" pid; }
plugin_ready() { berthctl plugin show "$1" -o json | jq -e '.state == "READY" and .registered'; }
cgroup_of() { sed -n 's/^0:://p' "/proc/$1/cgroup"; }

# Everything away again: plugins with their scopes, files, berthd.
clean_up() {
  rm -f -- "$CONFIG"/plugins.d/*.toml
  systemctl stop berthd 2>/dev/null
  systemctl stop 'berth-plugin-*.scope' 2>/dev/null
  systemctl reset-failed 2>/dev/null
  systemctl start dbus.socket dbus.service 2>/dev/null
  rm -f /etc/systemd/system/berthd.service.d/case.conf
  systemctl daemon-reload
}

# --- running them ------------------------------------------------------------------------------------------

export -f fail eventually expect expect_match plugin_file hostpath_file berthd_restart plugin_value plugin_pid \
  plugin_ready cgroup_of

install_payload() {
  cp -a /payload/root/. / || return 1
  systemctl daemon-reload
  CONFIG=$(systemctl show -P ExecStart berthd | sed -n 's/.*--config \([^ ;]*\).*/\1/p')
  [[ -n $CONFIG ]] || return 1
  export CONFIG
  mkdir -p "$CONFIG/plugins.d" /etc/systemd/system/berthd.service.d
  systemd-sysusers /usr/local/lib/sysusers.d/*.conf
}

run_case() {
  local name began=$SECONDS
  name=$(basename "$1" .sh)
  # Through a pipe: on a terminal some programs would paint.
  if bash -euo pipefail "$1" </dev/null 2>&1 | cat; then
    echo "=== passed $name ($((SECONDS - began)) s)"
  else
    echo "    --- berthd said:"
    journalctl -u berthd --no-pager -o cat -n 25 | sed 's/^/    /'
    echo "    --- plugins:"
    berthctl status 2>&1 | sed 's/^/    /'
    echo "=== failed $name ($((SECONDS - began)) s)"
  fi
  clean_up
}

wanted() {
  local name
  [[ ! -s /payload/wanted || -z $(tr -d '\n' </payload/wanted) ]] && return 0
  while IFS= read -r name; do
    [[ $1 != *"$name"* ]] || return 0
  done </payload/wanted
  return 1
}

echo "=== $(systemctl --version | head -n 1), Linux $(uname -r), up $(cut -d. -f1 /proc/uptime) s"
if install_payload; then
  for file in /payload/cases/*.sh; do
    ! wanted "$(basename "$file" .sh)" || run_case "$file"
  done
else
  echo '=== failed to install the programs'
fi
echo '=== end'
sync
systemctl poweroff --force
