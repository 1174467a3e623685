// The safety net of the decorated kernels: before an optimizer op first updates a variable, it and
// its slots get rank 0's values on every rank, unless they are synchronized already. Python does
// not do that for raw ops, or for eager variables that an optimizer gets after its first update.
//
// A kernel creates one object per execution, and calls Write on TensorFlow's runner. A variable
// whose memory nothing else holds is received in place, without a second copy.

#ifndef TFMPI_GLUE_VARIABLES_INITIAL_BROADCAST_H_
#define TFMPI_GLUE_VARIABLES_INITIAL_BROADCAST_H_

#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_patches/glue/runtime/request_group.h"
#include "tensorflow_patches/glue/variables/variable_names.h"

namespace tfmpi {

// An attribute of optimizer ops in graphs: the keys (variable_names.h) of the variable and its
// slots, for example ["*|dense/kernel", "*|dense/kernel/Momentum"]. "*" (kOfSession) is the scope
// of a variable of the graph, whose session is not known yet. An eager variable that a tf.function
// captures has a key such as "Anonymous/dense/kernel/42". For a ref variable the attribute has only
// the variable's own key. It is missing if Python does not know one of the keys. In an imported
// graph the keys may be those of another graph.
inline constexpr char kStates[] = "_tf_mpi_states";
inline constexpr char kOfSession[] = "*";

// The graph name of an optimizer op's ref variable: its input node, if Python has written that name
// into kStates; else the op's colocation, which optimizers set; else the input node.
std::string RefVariableName(const tensorflow::NodeDef& node);

// Whether an optimizer op's input is a state input, the variable or a slot: any ref or resource.
bool IsState(tensorflow::OpKernelContext* context, int input);
// The key, in this process, of a state input; `ref_variable` is the variable's name if it is a ref.
std::string StateKey(tensorflow::OpKernelContext* context, int input,
                     const std::string& ref_variable);
// The value of a state input, which shares the variable's memory; false if it has none.
bool ReadState(tensorflow::OpKernelContext* context, int input, tensorflow::Tensor* value);

class InitialBroadcast {
 public:
  // Adds to `group` a broadcast of each state input that is not synchronized yet, with a name made
  // from the variable's. From then on the input counts as synchronized, until `use` is undone. The
  // memory belongs to this object or to the variables.
  void AddBroadcasts(tensorflow::OpKernelContext* context, const std::string& ref_variable,
                     VariableUse* use, RequestGroup* group);
  // Adds the broadcast of one state input of any op, synchronized or not. Fails if the input has no
  // value or an unsupported type.
  absl::Status AddBroadcast(tensorflow::OpKernelContext* context, int input,
                            const std::string& request_name, RequestGroup* group);
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
