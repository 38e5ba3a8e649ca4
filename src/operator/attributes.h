#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "norm/activation.h"
#include "norm/variants.h"

namespace gluon_syncbn::op {

/// Which operators meet.
enum class Scope {
  kKey,    ///< every operator of the process that names the key
  kGraph,  ///< the operators made from one node of one graph, whatever its key says
};

/// The devices that synchronize with each other by `sync_group_size`, and with no others.
struct DeviceGroup {
  std::size_t number = 0;
  std::vector<int> device_ids;
};

/// With it begin all errors of a layer.
inline constexpr const char* kLayer = "SyncBatchNorm '";

/// The operator's attributes with the defaults of MXNet's BatchNorm.
struct Attributes {
  double eps = 1e-3F;                    ///< MXNet's default is a float
  std::optional<double> momentum = 0.9;  ///< empty: the average over all batches
  bool fix_gamma = true;
  bool use_global_stats = false;
  int axis = 1;
  std::size_t num_devices = 1;
  bool num_devices_known = true;  ///< otherwise the symbol is incomplete, and cannot run
  std::optional<std::size_t> sync_group_size;  ///< empty: all devices synchronize
  std::vector<int> device_ids;                 ///< the order in which groups take devices
  std::string key;
  Scope scope = Scope::kKey;
  int process_set = kNoProcessSet;  ///< of Horovod, to synchronize with other processes
  std::string across;               ///< the layer's name among processes; "" for the key
  Activation activation{ActType::kNone, 0.25};  ///< with the default slope of LeakyReLU
  bool shortcut = false;     ///< added before the activation; the operator then has four arguments
  bool inplace = false;      ///< backward reads the output and not the input
  bool is_mirrored = false;  ///< MXNet runs the forward pass again in backward, to save memory
  bool is_in_body = false;   ///< of an operator of control flow

  static constexpr int kNoProcessSet = -1;
  /// The version of the attributes. It grows when symbols get an attribute that earlier releases
  /// would misread.
  static constexpr int kVersion = 1;

  DzFrom dz_from() const { return gluon_syncbn::dz_from(activation.type, shortcut, inplace); }
  bool crosses_processes() const { return process_set != kNoProcessSet; }
  bool synchronizes() const { return group_size() > 1 || crosses_processes(); }

  /// Throws Error, which names the layer, the attribute, its value and the expected values.
  static Attributes parse(const std::vector<std::pair<std::string, std::string>>& pairs);
  /// Throws Error if attributes exclude each other.
  void check_combinations() const;

  /// "SyncBatchNorm 'key'", for messages.
  std::string layer() const;

  /// Number of devices that synchronize with each other.
  std::size_t group_size() const { return sync_group_size.value_or(num_devices); }

  /// The group of a device: groups take `device_ids` in their order. Empty if the device is in no
  /// group. There must be groups.
  std::optional<DeviceGroup> group_of(int device_id) const;

  /// "0, 1, 2, 3".
  std::string device_list() const;

  /// "SyncBatchNorm 'key' group 1 of 2 (device ids 2, 3)", for messages.
  std::string layer(const DeviceGroup& group) const;

  /// `axis` counted from the front. Throws Error if `ndim` dimensions have no such axis.
  std::size_t axis_of(std::size_t ndim) const;
};

}  // namespace gluon_syncbn::op
