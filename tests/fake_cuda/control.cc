#include "counters.h"
#include "device.h"
#include "fake_cuda.h"
#include "faults.h"
#include "settings.h"

using fake_cuda::device;

extern "C" {

long fakeCudaSet(const char* name, long value) { return fake_cuda::setting(name).exchange(value); }
void fakeCudaInject(const char* faults) { fake_cuda::inject(faults); }
long fakeCudaClearFaults() { return fake_cuda::clear_faults(); }
long fakeCudaCount(const char* what, int ordinal) { return fake_cuda::counted(what, ordinal); }
int fakeCudaHasContext(int ordinal) { return device(ordinal).has_context(); }
void fakeCudaReset(int ordinal) { device(ordinal).reset(); }

}  // extern "C"
