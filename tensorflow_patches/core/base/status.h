// A result without a value, for operations of the core that can fail.
//
// The core does not depend on absl; glue/ maps the codes one to one to absl::Status.

#ifndef TFMPI_CORE_BASE_STATUS_H_
#define TFMPI_CORE_BASE_STATUS_H_

#include <string>
#include <utility>

namespace tfmpi {

enum class Code {
  kOk,
  kCancelled,           // the caller withdrew the request
  kInvalidArgument,     // the ranks asked for different things, or the request makes no sense
  kFailedPrecondition,  // not possible in this state: the engine or a needed rank has ended, ...
  kDeadlineExceeded,    // a wait has timed out
  kUnavailable,         // a peer or the transport has failed; nothing more can be averaged
  kInternal,            // a bug of ours, damaged data, or no memory
};
inline constexpr int kNumCodes = 7;

class Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

}  // namespace tfmpi

// Returns `status`, which is evaluated once, from the calling function, unless it is ok.
#define TFMPI_RETURN_IF_NOT_OK(status)                                       \
  do {                                                                       \
    if (const ::tfmpi::Status tfmpi_status = (status); !tfmpi_status.ok()) { \
      return tfmpi_status;                                                   \
    }                                                                        \
  } while (false)

#endif  // TFMPI_CORE_BASE_STATUS_H_
