#ifndef GLUON_SYNCBN_TESTS_NATIVE_FAKE_MXNET_NDARRAY_H_
#define GLUON_SYNCBN_TESTS_NATIVE_FAKE_MXNET_NDARRAY_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "fake_mxnet/engine.h"
#include "fake_mxnet/types.h"

namespace gluon_syncbn::host {

struct Node;

/// What an array is in a recorded graph: output `index` of `node` (nnvm::NodeEntry).
struct Entry {
  std::shared_ptr<Node> node;
  std::size_t index = 0;
};

/// Memory and the variable that orders its uses (ndarray.h, NDArray::Chunk). Memory of its own is
/// allocated when first asked for, and goes when the last operation on it is over.
class Chunk {
 public:
  Chunk(const Context& context, std::size_t bytes);
  /// Of memory that somebody else owns. Its context is what memory of that type tells.
  Chunk(void* data, const Context& context);
  ~Chunk();
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  Variable* variable() const { return variable_; }
  const Context& context() const { return context_; }
  void* data();

 private:
  Variable* const variable_ = Engine::get().new_variable();
  const Context context_;
  const std::size_t bytes_ = 0;
  const bool owned_;
  void* data_ = nullptr;
};

/// A handle of the C interface points to one of these. Copies share memory and variable.
struct NDArray {
  std::shared_ptr<Chunk> chunk;
  Shape shape;
  int dtype = kNoDType;
  Entry entry;

  static NDArray make(const Shape& shape, int dtype, const Context& context);
  /// Another array of the same memory with a variable of its own, as a custom operator gets it
  /// (custom.cc, AllocateNDArrayCopy).
  NDArray alias(int device) const;
  /// Without its place in the graph.
  NDArray detach() const { return {chunk, shape, dtype, {}}; }

  bool is_none() const { return !chunk; }
  std::size_t size() const;
  Variable* variable() const { return chunk->variable(); }
  const Context& context() const { return chunk->context(); }

  void wait_to_read() const { Engine::get().wait_for(variable()); }
  void wait_to_write() const;
  void copy_from_host(const void* data) const;
  void copy_to_host(void* data) const;
};

}  // namespace gluon_syncbn::host

#endif  // GLUON_SYNCBN_TESTS_NATIVE_FAKE_MXNET_NDARRAY_H_
