// What a control message is sent in: its number among those from one rank to another, and a hash of
// all of it. So one that was damaged, lost, or came twice is noticed, and not obeyed.
//
// Pure functions, any thread. The hash finds accidents; it keeps nobody out.

#ifndef TFMPI_CORE_AGREEMENT_ENVELOPE_H_
#define TFMPI_CORE_AGREEMENT_ENVELOPE_H_

#include <cstdint>
#include <string>

namespace tfmpi {

// `number`: 1, 2, ..
std::string Seal(uint32_t number, const std::string& message);
// What is wrong with it, for people: "" if it is the message with this number, whole.
std::string Open(uint32_t number, const std::string& sealed, std::string* message);

}  // namespace tfmpi

#endif  // TFMPI_CORE_AGREEMENT_ENVELOPE_H_
