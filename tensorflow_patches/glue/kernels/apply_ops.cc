#include "tensorflow_patches/glue/kernels/apply_ops.h"

#include <algorithm>

namespace tfmpi {

const std::vector<ApplyOp>& AllApplyOps() {
  // Sorted by name, for FindApplyOp. Function-local, because registrations reach FindApplyOp before
  // this library's static constructors run.
  static const auto* const ops = new std::vector<ApplyOp>{
      {"ApplyAdaMax", "grad", false},
      {"ApplyAdadelta", "grad", false},
      {"ApplyAdagrad", "grad", false},
      {"ApplyAdagradDA", "grad", false},
      {"ApplyAdagradV2", "grad", false},
      {"ApplyAdam", "grad", false},
      {"ApplyAddSign", "grad", false},
      {"ApplyCenteredRMSProp", "grad", false},
      {"ApplyFtrl", "grad", false},
      {"ApplyFtrlV2", "grad", false},
      {"ApplyGradientDescent", "delta", false},
      {"ApplyMomentum", "grad", false},
      {"ApplyPowerSign", "grad", false},
      {"ApplyProximalAdagrad", "grad", false},
      {"ApplyProximalGradientDescent", "delta", false},
      {"ApplyRMSProp", "grad", false},
      {"ResourceApplyAdaMax", "grad", false},
      {"ResourceApplyAdadelta", "grad", false},
      {"ResourceApplyAdagrad", "grad", false},
      {"ResourceApplyAdagradDA", "grad", false},
      {"ResourceApplyAdagradV2", "grad", false},
      {"ResourceApplyAdam", "grad", false},
      {"ResourceApplyAdamWithAmsgrad", "grad", false},
      {"ResourceApplyAddSign", "grad", false},
      {"ResourceApplyCenteredRMSProp", "grad", false},
      {"ResourceApplyFtrl", "grad", false},
      {"ResourceApplyFtrlV2", "grad", false},
      {"ResourceApplyGradientDescent", "delta", false},
      {"ResourceApplyKerasMomentum", "grad", false},
      {"ResourceApplyMomentum", "grad", false},
      {"ResourceApplyPowerSign", "grad", false},
      {"ResourceApplyProximalAdagrad", "grad", false},
      {"ResourceApplyProximalGradientDescent", "delta", false},
      {"ResourceApplyRMSProp", "grad", false},
      {"ResourceSparseApplyAdadelta", "grad", true},
      {"ResourceSparseApplyAdagrad", "grad", true},
      {"ResourceSparseApplyAdagradDA", "grad", true},
      {"ResourceSparseApplyAdagradV2", "grad", true},
      {"ResourceSparseApplyCenteredRMSProp", "grad", true},
      {"ResourceSparseApplyFtrl", "grad", true},
      {"ResourceSparseApplyFtrlV2", "grad", true},
      {"ResourceSparseApplyKerasMomentum", "grad", true},
      {"ResourceSparseApplyMomentum", "grad", true},
      {"ResourceSparseApplyProximalAdagrad", "grad", true},
      {"ResourceSparseApplyProximalGradientDescent", "grad", true},
      {"ResourceSparseApplyRMSProp", "grad", true},
      {"SparseApplyAdadelta", "grad", true},
      {"SparseApplyAdagrad", "grad", true},
      {"SparseApplyAdagradDA", "grad", true},
      {"SparseApplyAdagradV2", "grad", true},
      {"SparseApplyCenteredRMSProp", "grad", true},
      {"SparseApplyFtrl", "grad", true},
      {"SparseApplyFtrlV2", "grad", true},
      {"SparseApplyMomentum", "grad", true},
      {"SparseApplyProximalAdagrad", "grad", true},
      {"SparseApplyProximalGradientDescent", "grad", true},
      {"SparseApplyRMSProp", "grad", true},
  };
  return *ops;
}

const ApplyOp* FindApplyOp(std::string_view name) {
  if (name.find("Apply") == std::string_view::npos) return nullptr;  // most registrations
  const std::vector<ApplyOp>& ops = AllApplyOps();
  const auto it =
      std::lower_bound(ops.begin(), ops.end(), name,
                       [](const ApplyOp& op, std::string_view n) { return op.name < n; });
  return it != ops.end() && it->name == name ? &*it : nullptr;
}

}  // namespace tfmpi
