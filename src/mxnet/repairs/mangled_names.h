#pragma once

/// The C++ symbols of libmxnet that this library looks up. All other uses of MXNet go through its C
/// functions (c_api.h). `c++filt` prints the names as below; the paths are those of
/// apache/mxnet 1.9.1.
namespace gluon_syncbn::mxnet::mangled {

// mxnet::ResourceManager::Get() (mxnet/include/mxnet/resource.h): the calling thread's manager.
constexpr const char* kGetManager = "_ZN5mxnet15ResourceManager3GetEv";

// vtable for mxnet::resource::ResourceManagerImpl (mxnet/src/resource.cc). Its first three
// functions are the ones below, in this order, because mxnet/include/mxnet/resource.h declares them
// in this order.
constexpr const char* kManagerVtable = "_ZTVN5mxnet8resource19ResourceManagerImplE";

// mxnet::resource::ResourceManagerImpl::Request(mxnet::Context, mxnet::ResourceRequest const&)
constexpr const char* kRequest =
    "_ZN5mxnet8resource19ResourceManagerImpl7RequestENS_7ContextERKNS_15ResourceRequestE";

// mxnet::resource::ResourceManagerImpl::SeedRandom(unsigned int)
constexpr const char* kSeed = "_ZN5mxnet8resource19ResourceManagerImpl10SeedRandomEj";

// mxnet::resource::ResourceManagerImpl::SeedRandom(mxnet::Context, unsigned int)
constexpr const char* kSeedContext =
    "_ZN5mxnet8resource19ResourceManagerImpl10SeedRandomENS_7ContextEj";

// guard variable for dmlc::ThreadLocalStore<mxnet::engine::ThreadedEngine::BulkStatus>::Singleton()
// ::inst (mxnet/3rdparty/dmlc-core/include/dmlc/thread_local.h), which the engine sets
// (mxnet/src/engine/threaded_engine.h) at its first operation, on any thread.
constexpr const char* kEngineHasBegun =
    "_ZGVZN4dmlc16ThreadLocalStoreIN5mxnet6engine14ThreadedEngine10BulkStatusEE9SingletonEvE4inst";

// mxnet::op::custom::InferShape(nnvm::NodeAttrs const&, std::vector<mxnet::TShape>*,
// std::vector<mxnet::TShape>*) (mxnet/src/operator/custom/custom.cc)
constexpr const char* kInferShape =
    "_ZN5mxnet2op6custom10InferShapeERKN4nnvm9NodeAttrsEPSt6vectorINS_6TShapeESaIS7_EESA_";

// nnvm::Op::GetAttrMap(std::string const&) (op.cc of nnvm, which MXNet contains), with the
// std::string of GCC 4.8.
constexpr const char* kGetAttrMap = "_ZN4nnvm2Op10GetAttrMapERKSs";

}  // namespace gluon_syncbn::mxnet::mangled
