// Products of matrices, whose columns are contiguous: C = alpha op(A) op(B) + beta C.

#include <cstdint>

#include "libraries/handle.h"

using fake_cuda::array;
using fake_cuda::Handle;
using fake_cuda::kDouble;
using fake_cuda::kFloat;
using fake_cuda::scalar;
using fake_cuda::Values;

namespace {

constexpr int kHalfCompute = 64;  // CUBLAS_COMPUTE_16F
constexpr int kDoubleCompute = 70;
constexpr int kExecutionFailed = 13;

/// One matrix or several, with an element between them every `stride`.
struct Matrices {
  Values values;
  std::int64_t leading;
  std::int64_t stride;
  bool transposed;

  std::int64_t index(std::int64_t batch, std::int64_t row, std::int64_t column) const {
    return batch * stride + (transposed ? row * leading + column : column * leading + row);
  }
  double get(std::int64_t batch, std::int64_t row, std::int64_t column) const {
    return values.get(index(batch, row, column));
  }
};

struct Sizes {
  int rows, columns, terms, batches;
};

int gemm(const Handle* handle, Sizes sizes, double alpha, Matrices a, Matrices b, double beta,
         Matrices c) {
  const auto work = [=] {
    for (int batch = 0; batch < sizes.batches; ++batch) {
      for (int row = 0; row < sizes.rows; ++row) {
        for (int column = 0; column < sizes.columns; ++column) {
          double sum = 0;
          for (int k = 0; k < sizes.terms; ++k) {
            sum += a.get(batch, row, k) * b.get(batch, k, column);
          }
          // What is there is not read if it does not count: it may be no number.
          const double before = beta == 0 ? 0 : beta * c.get(batch, row, column);
          c.values.set(c.index(batch, row, column), alpha * sum + before);
        }
      }
    }
  };
  return put(handle, "gemm", work, kExecutionFailed);
}

Matrices matrices(int type, const void* address, int leading, int operation, std::int64_t stride) {
  return {array(type, address), leading, stride, operation != 0};
}

}  // namespace

extern "C" {

int cublasCreate_v2(Handle** handle) { return fake_cuda::create(handle); }
int cublasDestroy_v2(Handle* handle) { return fake_cuda::destroy(handle); }
int cublasSetStream_v2(Handle* handle, cudaStream_t stream) {
  handle->stream = stream;
  return fake_cuda::kSuccess;
}

int cublasSgemmEx(Handle* handle, int a_operation, int b_operation, int rows, int columns,
                  int terms, const float* alpha, const void* a, int a_type, int a_leading,
                  const void* b, int b_type, int b_leading, const float* beta, void* c, int c_type,
                  int c_leading) {
  return gemm(
      handle, {rows, columns, terms, 1}, *alpha, matrices(a_type, a, a_leading, a_operation, 0),
      matrices(b_type, b, b_leading, b_operation, 0), *beta, matrices(c_type, c, c_leading, 0, 0));
}

int cublasGemmEx(Handle* handle, int a_operation, int b_operation, int rows, int columns, int terms,
                 const void* alpha, const void* a, int a_type, int a_leading, const void* b,
                 int b_type, int b_leading, const void* beta, void* c, int c_type, int c_leading,
                 int compute, int) {
  if (compute == kHalfCompute) fake_cuda::die("sums in float16 are not imitated");
  const int scale = compute == kDoubleCompute ? kDouble : kFloat;
  return gemm(handle, {rows, columns, terms, 1}, scalar(scale, alpha),
              matrices(a_type, a, a_leading, a_operation, 0),
              matrices(b_type, b, b_leading, b_operation, 0), scalar(scale, beta),
              matrices(c_type, c, c_leading, 0, 0));
}

int cublasDgemm_v2(Handle* handle, int a_operation, int b_operation, int rows, int columns,
                   int terms, const double* alpha, const double* a, int a_leading, const double* b,
                   int b_leading, const double* beta, double* c, int c_leading) {
  return gemm(handle, {rows, columns, terms, 1}, *alpha,
              matrices(kDouble, a, a_leading, a_operation, 0),
              matrices(kDouble, b, b_leading, b_operation, 0), *beta,
              matrices(kDouble, c, c_leading, 0, 0));
}

int cublasSgemmStridedBatched(Handle* handle, int a_operation, int b_operation, int rows,
                              int columns, int terms, const float* alpha, const float* a,
                              int a_leading, long long a_stride, const float* b, int b_leading,
                              long long b_stride, const float* beta, float* c, int c_leading,
                              long long c_stride, int batches) {
  return gemm(handle, {rows, columns, terms, batches}, *alpha,
              matrices(kFloat, a, a_leading, a_operation, a_stride),
              matrices(kFloat, b, b_leading, b_operation, b_stride), *beta,
              matrices(kFloat, c, c_leading, 0, c_stride));
}

int cublasDgemmStridedBatched(Handle* handle, int a_operation, int b_operation, int rows,
                              int columns, int terms, const double* alpha, const double* a,
                              int a_leading, long long a_stride, const double* b, int b_leading,
                              long long b_stride, const double* beta, double* c, int c_leading,
                              long long c_stride, int batches) {
  return gemm(handle, {rows, columns, terms, batches}, *alpha,
              matrices(kDouble, a, a_leading, a_operation, a_stride),
              matrices(kDouble, b, b_leading, b_operation, b_stride), *beta,
              matrices(kDouble, c, c_leading, 0, c_stride));
}

}  // extern "C"
