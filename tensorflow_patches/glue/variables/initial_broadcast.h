// The safety net of the decorated kernels: at a variable's first Apply, rank 0's value becomes
// every rank's, for what nothing has synchronized before (a raw op, or an eager variable made
// inside its first tape), slots included.
//
// One object per execution of a kernel, made and asked by it on an inter-op thread; Write runs on
// TensorFlow's runner. A large table is received where it lies, never beside itself.

#ifndef TFMPI_GLUE_VARIABLES_INITIAL_BROADCAST_H_
#define TFMPI_GLUE_VARIABLES_INITIAL_BROADCAST_H_

#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_patches/glue/runtime/request_group.h"

namespace tfmpi {

// An attribute of Apply ops in graphs: the keys (variable_names.h) of the variable and its slots,
// of a ref variable only its own; those of a session in the scope kOfSession. Missing where Python
// does not know one of them. A graph that was imported may bring those of another.
inline constexpr char kStates[] = "_tf_mpi_states";
inline constexpr char kOfSession[] = "*";

// The graph name of an Apply op's ref variable: the node that it comes from, if that is what Python
// has written, else the op's colocation, which optimizers set, else that node.
std::string RefVariableName(const tensorflow::NodeDef& node);

// Which variable or slot a state input is, in this process; `ref_variable` is its name if it is a
// ref.
std::string StateKey(tensorflow::OpKernelContext* context, int input,
                     const std::string& ref_variable);

// The variable and its slots: every ref or resource input of an Apply op.
bool IsState(tensorflow::OpKernelContext* context, int input);
// The value of a state input, which shares the variable's memory; false if it has none.
bool ReadState(tensorflow::OpKernelContext* context, int input, tensorflow::Tensor* value);

class InitialBroadcast {
 public:
  // Adds to `group` what is not synchronized yet, under names made of `name`; the memory is this
  // object's or the variables'.
  void AddBroadcasts(tensorflow::OpKernelContext* context, const std::string& name,
                     const std::string& ref_variable, int rank, RequestGroup* group);
  // One state input of any op, whether synchronized or not, under the name `request`.
  absl::Status AddBroadcast(tensorflow::OpKernelContext* context, int input,
                            const std::string& request, int rank, RequestGroup* group);
  bool empty() const { return received_.empty(); }
  // When the group has ended well: what came becomes the variables' value.
  absl::Status Write(tensorflow::OpKernelContext* context);

 private:
  struct Received {
    int input;
    tensorflow::Tensor value;
  };

  int rank_ = 0;
  std::vector<Received> received_;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_VARIABLES_INITIAL_BROADCAST_H_
