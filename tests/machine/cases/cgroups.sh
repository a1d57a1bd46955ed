#!/usr/bin/env bash
# PluginCgroup's own test, against the real systemd, its scopes and the kernel's limits.
plugin_cgroup_test --gtest_brief=1
# And without a message bus: by systemd's private socket.
systemctl stop dbus.socket dbus.service
plugin_cgroup_test --gtest_brief=1 --gtest_filter='SystemdScope*'
