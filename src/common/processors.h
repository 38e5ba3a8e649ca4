#pragma once

namespace gluon_syncbn {

/// The number of cores that this process may use, by its affinity.
int cores();

/// cores(), or less if the container has a limit of processor time, as by `docker --cpus`.
double processors();

}  // namespace gluon_syncbn
