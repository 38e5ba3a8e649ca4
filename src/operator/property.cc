#include "operator/property.h"

#include <cstddef>
#include <utility>

#include "common/error.h"
#include "common/list_text.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "cuda/memory.h"
#include "distributed/process_rounds.h"
#include "mxnet/dtype.h"
#include "mxnet/engine.h"
#include "mxnet/memory_pool.h"
#include "mxnet/repairs/cpu_context_check.h"
#include "mxnet/repairs/openblas.h"
#include "mxnet/repairs/unknown_shapes.h"

namespace gluon_syncbn::op {

using namespace mxnet;

namespace {

constexpr std::size_t kMinDimensions = 2;
constexpr std::size_t kMaxDimensions = 5;

std::string to_string(const Shape& shape) {
  return "(" + number_list(shape) + (shape.size() == 1 ? ",)" : ")");
}

/// Whether `shape` may be `expected`, as far as both are known.
bool is_compatible(const std::optional<Shape>& shape, const Shape& expected) {
  if (!shape) return true;
  if (shape->size() != expected.size()) return false;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const int size = (*shape)[i];
    if (size >= 0 && expected[i] >= 0 && size != expected[i]) return false;
  }
  return true;
}

/// Parses a context as MXNet prints it, such as "cpu(1)".
Device parse_context(const std::string& layer, const std::string& context) {
  const auto open = context.find('(');
  if (open == std::string::npos || context.back() != ')') {
    throw Error(layer + ": context '" + context + "' should look like cpu(0)");
  }
  return {context.substr(0, open), std::stoi(context.substr(open + 1))};
}

/// Throws Error, which names `layer`, if there is no such device.
const Backend& backend_of(const Device& device, const std::string& layer) {
  if (device.type == "cpu") return cpu::backend();
  if (device.type != "gpu") {
    throw Error(layer + ": called on " + device.name() +
                " where a context of type cpu or gpu is expected");
  }
  static std::once_flag once;
  std::call_once(once, [] { cuda::set_lender(mxnet::lend_from_pool); });
  return cuda::backend_of(device.index, layer);
}

/// NaiveEngine would wait for the operation of the first device, and never run its peers. It also
/// drops the error of the timeout.
void require_threaded_engine(const std::string& layer) {
  if (!is_engine("NaiveEngine")) return;
  throw Error(layer +
              ": MXNET_ENGINE_TYPE=NaiveEngine runs one operation after the other and cannot "
              "synchronize several devices; unset it or use one device");
}

/// The asynchronous engine makes only its own streams wait for inputs. Kernels on the streams of
/// this library would start too early.
void require_synchronous_gpu_engine(const std::string& layer) {
  const std::string setting = asynchronous_gpu_engine();
  if (setting.empty()) return;
  throw Error(layer + ": " + setting +
              " lets operations on GPUs begin before their inputs are computed, which gluon_syncbn "
              "does not support; unset it");
}

}  // namespace

Property::Shapes Property::infer_shapes(const std::vector<std::optional<Shape>>& given) const {
  const std::string layer = attributes_.layer();
  if (!given.front()) throw UnknownShapes(layer + ": the shape of data is not known");
  const Shape& data = *given.front();
  if (data.size() < kMinDimensions || data.size() > kMaxDimensions) {
    throw Error(layer + ": data has shape " + to_string(data) +
                " where 2 to 5 dimensions are expected");
  }
  Shapes shapes{data, {data[attributes_.axis_of(data.size())]}};
  const auto require_per_channel = [&](const char* name, const std::optional<Shape>& parameter) {
    if (!parameter || (!parameter->empty() && parameter->front() <= 0)) return;
    if (shapes.parameter.front() < 0 && parameter->size() == 1) shapes.parameter = *parameter;
    if (shapes.parameter.front() >= 0 && *parameter != shapes.parameter) {
      throw Error(layer + ": " + name + " has shape " + to_string(*parameter) + " where " +
                  to_string(shapes.parameter) + " is expected, one for each channel of " +
                  "data of shape " + to_string(data) + " along axis " +
                  std::to_string(attributes_.axis));
    }
  };
  const auto arrays = positions().arrays();
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const auto& [name, role] = arrays[i];
    if (role == Role::kParameter) {
      require_per_channel(name, given[i]);
    } else if (!is_compatible(given[i], shapes.of(role))) {
      throw Error(layer + ": " + name + " has shape " + to_string(*given[i]) + " where " +
                  to_string(shapes.of(role)) + " is expected" +
                  (role == Role::kData ? ", that of data" : ""));
    }
  }
  return shapes;
}

void Property::require_inputs(std::size_t number) const {
  auto inputs = positions().arrays();
  inputs.erase(inputs.begin() + static_cast<std::ptrdiff_t>(positions().forward().out()));
  if (number == inputs.size()) return;
  std::string names;
  for (const NamedArray& input : inputs) append_item(&names, input.name);
  throw Error(attributes_.layer() + ": the number of inputs is " + std::to_string(number) +
              " where " + std::to_string(inputs.size()) + " is expected: " + names);
}

Property::DTypes Property::infer_dtypes(const std::vector<int>& given) const {
  const std::string layer = attributes_.layer();
  const auto arrays = positions().arrays();
  const std::size_t out = positions().forward().out();
  DTypes dtypes{kUnknownDType, kUnknownDType};
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    if (dtypes.data == kUnknownDType && arrays[i].role == Role::kData) {
      dtypes.data = static_cast<MXDType>(given[i]);
    }
  }
  if (dtypes.data == kUnknownDType) return dtypes;
  try {
    static_cast<void>(dtype_of(dtypes.data));
  } catch (const Error& error) {
    throw Error(layer + ": " + error.what());
  }
  dtypes.parameter = parameter_dtype(dtypes.data);
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const auto& [name, role] = arrays[i];
    const MXDType expected = dtypes.of(role);
    if (i == out || given[i] == kUnknownDType || given[i] == expected) continue;
    throw Error(layer + ": " + name + " is " + dtype_name(given[i]) + " where " +
                dtype_name(expected) + " is expected for data of " + dtype_name(dtypes.data));
  }
  return dtypes;
}

void Property::require_dense(const std::string& name, int storage) const {
  if (storage == kUnknownStorage || storage == kDense) return;
  const char* const storage_name = storage == kRowSparse ? "row_sparse" : "csr";
  throw Error(attributes_.layer() + ": " + name + " is " + storage_name +
              " where a dense array is expected; convert it with tostype('default')");
}

std::shared_ptr<Operator> Property::create_operator(const std::string& context) {
  const std::string layer = attributes_.layer();
  if (!attributes_.num_devices_known) {
    throw Error(layer +
                ": num_devices=None, because the network became a symbol before its parameters "
                "had contexts; initialize the network and call "
                "gluon_syncbn.convert_sync_batchnorm(net), or pass num_devices to the layer");
  }
  const Device device = parse_context(layer, context);
  const bool synchronizes = attributes_.synchronizes();
  if (synchronizes) require_threaded_engine(layer);
  if (device.type == "gpu") require_synchronous_gpu_engine(layer);
  const Backend& backend = backend_of(device, layer);
  if (device.type == "cpu") {
    require_safe_cpu_contexts(layer, attributes_.num_devices > 1);
    if (attributes_.num_devices > 1) use_one_thread_per_product(layer);
  }
  auto barrier = synchronizes ? this->barrier(device) : nullptr;
  const auto op =
      std::make_shared<Operator>(attributes_, device, backend, std::move(barrier), node_calls_);
  if (attributes_.is_mirrored) {
    // MXNet makes the operator of the graph, then the one that repeats its forward pass.
    const std::lock_guard<std::mutex> lock(mutex_);
    op->may_repeat(std::exchange(latest_[device], op).lock());
  }
  return op;
}

std::shared_ptr<Barrier> Property::barrier(const Device& device) {
  DeviceGroup group{0, attributes_.device_ids};
  std::string layer = attributes_.layer();
  Barrier::Options options;
  options.key = attributes_.key;
  if (attributes_.sync_group_size) {
    const auto found = attributes_.group_of(device.index);
    if (!found) return nullptr;
    group = *found;
    layer = attributes_.layer(group);
    options.key += "\n" + layer;
    options.option = "sync_group_size";
  }
  options.device_ids = group.device_ids;
  options.processes = process_rounds();
  if (attributes_.scope == Scope::kKey) {
    return Barrier::named(layer, attributes_.group_size(), options);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& own = barriers_[group.number];
  if (!own) own = std::make_shared<Barrier>(layer, attributes_.group_size(), options);
  return own;
}

std::shared_ptr<ProcessRounds> Property::process_rounds() const {
  if (!attributes_.crosses_processes()) return nullptr;
  return ProcessRounds::named(attributes_.process_set, attributes_.across);
}

}  // namespace gluon_syncbn::op
