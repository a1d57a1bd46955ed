#!/usr/bin/env bash
# systemd's credentials reach the plugin's environment, and nothing else does.
cat >/etc/systemd/system/berthd.service.d/case.conf <<'UNIT'
[Service]
SetCredential=api-key:the-value-of-the-credential
UNIT
systemctl daemon-reload
hostpath_file disk <<'TOML'
[env]
API_KEY = { credential = "api-key" }
TOML
berthd_restart
eventually 120 plugin_ready disk
environment=$(tr '\0' '\n' <"/proc/$(plugin_pid disk)/environ")
expect_match 'the environment' "$environment" 'API_KEY=the-value-of-the-credential'
[[ $environment != *NOTIFY_SOCKET* && $environment != *CREDENTIALS_DIRECTORY* ]] || fail "berthd's own: $environment"
! journalctl -u berthd --no-pager | grep -q the-value-of-the-credential || fail 'the log has the credential'
