#pragma once

#include <string>

namespace gluon_syncbn {

/// The number of cores that this process may use, by its affinity.
int cores();

/// cores(), or less if the control group (cgroups(7)) has a limit of processor time, as that of
/// `docker --cpus`. A container sees its own group in this folder.
double processors(const std::string& group = "/sys/fs/cgroup");

}  // namespace gluon_syncbn
