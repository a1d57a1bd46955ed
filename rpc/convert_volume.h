// Volumes, their publications, and what is found out about them, as berth.v1 says it.
//
// Mount flags and the kernel's mount options are as sensitive as secrets: "(hidden)" stands for them unless
// `show_options`, which is for peers who may change. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "berth/v1/node.pb.h"
#include "declared/declared_directory.h"
#include "mounter/volume_types.h"

namespace berth {

[[nodiscard]] v1::Volume ToProto(const VolumeView& volume, bool show_options);
[[nodiscard]] v1::ConsumerMount ToProto(const ConsumerMount& mount, bool show_options);
[[nodiscard]] v1::ExplainVolumeResponse ToProto(const VolumeExplanation& explanation, bool show_options);

// As many as one message may hold, the worst first; the last one says how many were left out.
[[nodiscard]] v1::ExamineResponse ToProto(const std::vector<Finding>& findings);

// A volume that is only declared, by `files` (not empty), and not here.
[[nodiscard]] v1::Volume DeclaredVolume(const std::string& plugin_id, const std::string& volume_id,
                                        const std::vector<DeclaredView>& files, bool show_options);

// Which files declare the volume; and where it has no error of its own, theirs.
void AddDeclared(const std::vector<DeclaredView>& files, v1::Volume* volume);

// The file's name without ".toml", by which people know what it declares.
[[nodiscard]] std::string DeclaredName(const DeclaredView& file);
// One file of volumes.d.
[[nodiscard]] v1::DeclaredVolume ToProto(const DeclaredView& file);

// It is published, as its file says.
[[nodiscard]] bool IsWell(const DeclaredView& file);
// "volumes.d/data.toml declares it for consumer web: waiting: plugin nfs is not ready".
[[nodiscard]] std::string DescribeDeclared(const DeclaredView& file);

}  // namespace berth
