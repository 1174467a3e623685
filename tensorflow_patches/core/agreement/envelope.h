// The envelope of a control message: its sequence number between two ranks, and a hash of the
// content. Damage and duplicates are detected on arrival, a loss when the next message arrives.
//
// Pure functions, any thread. The hash detects accidents, not attacks.

#ifndef TFMPI_CORE_AGREEMENT_ENVELOPE_H_
#define TFMPI_CORE_AGREEMENT_ENVELOPE_H_

#include <cstdint>
#include <string>

namespace tfmpi {

// `number`: counts the messages from one rank to another, from 1.
std::string Seal(uint32_t number, const std::string& message);
// Extracts the message. Returns what is wrong; "" if it is the intact message with that number.
std::string Open(uint32_t number, const std::string& sealed, std::string* message);

}  // namespace tfmpi

#endif  // TFMPI_CORE_AGREEMENT_ENVELOPE_H_
