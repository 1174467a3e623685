// The safety net of the decorated kernels: at the first Apply of a variable, rank 0's value becomes
// every rank's, including slots, if nothing has synchronized it before (a raw op, or an eager
// variable created inside or after the first tape).
//
// One object per execution of a kernel, which creates and uses it on an inter-op thread; Write runs
// on TensorFlow's runner. A large table is received in place, without a second copy.

#ifndef TFMPI_GLUE_VARIABLES_INITIAL_BROADCAST_H_
#define TFMPI_GLUE_VARIABLES_INITIAL_BROADCAST_H_

#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_patches/glue/runtime/request_group.h"

namespace tfmpi {

// An attribute of Apply ops in graphs: the keys (variable_names.h) of the variable and its slots,
// for example ["*|dense/kernel", "*|dense/kernel/Momentum"]. "*" (kOfSession) is the scope of a
// variable of the graph, whose session is not known yet. An eager variable that a tf.function
// captures has a key such as "Anonymous/dense/kernel/42". For a ref variable the attribute has only
// the variable's own key. Missing if Python does not know one of the keys. An imported graph may
// contain keys of another graph.
inline constexpr char kStates[] = "_tf_mpi_states";
inline constexpr char kOfSession[] = "*";

// The graph name of an Apply op's ref variable: its input node, if that is what Python has written;
// else the op's colocation, which optimizers set; else the input node.
std::string RefVariableName(const tensorflow::NodeDef& node);

// Whether an input is a state input, the variable or a slot: any ref or resource input of an Apply
// op.
bool IsState(tensorflow::OpKernelContext* context, int input);
// The key, in this process, of a state input; `ref_variable` is the variable's name if it is a ref.
std::string StateKey(tensorflow::OpKernelContext* context, int input,
                     const std::string& ref_variable);
// The value of a state input, which shares the variable's memory; false if it has none.
bool ReadState(tensorflow::OpKernelContext* context, int input, tensorflow::Tensor* value);

class InitialBroadcast {
 public:
  // Adds to `group` what is not synchronized yet, with names made from `name`. The memory belongs
  // to this object or to the variables.
  void AddBroadcasts(tensorflow::OpKernelContext* context, const std::string& name,
                     const std::string& ref_variable, int rank, RequestGroup* group);
  // Adds one state input of any op, synchronized or not. Fails if it has no value or its type is
  // unsupported.
  absl::Status AddBroadcast(tensorflow::OpKernelContext* context, int input,
                            const std::string& request_name, int rank, RequestGroup* group);
  bool empty() const { return received_.empty(); }
  // Call it when the group has ended with ok: assigns the received values to the variables.
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
