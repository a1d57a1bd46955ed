#!/usr/bin/env bash
# Mounts and who has them, asked of Debian's own kernel: it lists no mount namespaces, mounts have no unique ids,
# and what changes is not reported.
test_program=$(command -v mount_test)
# Where the tests look for it.
built=$(grep -aoE '/[[:print:]]+/bin/berth-mount-helper' "$test_program" | head -n 1)
installed=$(command -v berthctl)
mkdir -p "${built%/*}"
[[ -e $built ]] || ln -s "${installed%/bin/*}/libexec/berth/berth-mount-helper" "$built"
mount_test --gtest_brief=1 --gtest_filter='*Census*Test*:*Fault47*:*MountWatchTest*'
# Not that one: a tmpfs in the place of another one may have its numbers, so that nothing distinguishes them.
readonly ALIKE='*AMountInPlaceOfTheStagingIsNotTakenForIt'
mounter_test --gtest_brief=1 --gtest_filter='*Holders*:*MounterRelease*:*MounterPath*:*MounterReconcile*:*MounterStaging*:*Names*'"-$ALIKE"
