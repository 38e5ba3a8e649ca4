#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "cuda/kernel.h"
#include "cuda/kernels/messages.h"

namespace gluon_syncbn::cuda {

// The phases of a pass on one GPU. Arrays lie in memory of the GPU, and a kernel reads them once.
// As on the CPU (cpu/kernels.h), the order of sums depends on the layout. It also depends on the
// place of an array within 16 bytes. Kernels get copies of arrays that do not lie alike within 16
// bytes. In a rehearsal (Launcher), arguments say only which arrays there are, and how they lie.

/// Computes the partial statistics of the device into `message`: mean and M2 of every channel, or
/// the sums of dz and of dz * (x - mean). dz is the gradient with respect to the input of the
/// activation.
void launch_sums(const Work& work, const Message& message, const Launcher& launcher);

/// Merges the messages, or takes the running statistics, into `saved`. Then computes y.
void launch_outputs(const Forward& work, const Messages& messages, const Saved& saved,
                    const Launcher& launcher);

/// Merges the messages, which are empty if forward took the running statistics. Then computes the
/// gradients. `own` is the message of this device. In place, the first channel that is not
/// invertible goes to `first_not_invertible`, in memory of the host, which holds ~0u before.
void launch_outputs(const Backward& work, const Messages& messages, const double* own,
                    std::uint32_t* first_not_invertible, const Launcher& launcher);

}  // namespace gluon_syncbn::cuda
