// Counters of the interposed registration. Any thread.

#ifndef TFMPI_GLUE_REGISTRATION_INTERPOSE_H_
#define TFMPI_GLUE_REGISTRATION_INTERPOSE_H_

#include <cstdint>

namespace tfmpi {

// 0: TensorFlow was loaded before this library, so nothing would be averaged.
int64_t RegistrationsSeen();
int64_t RegistrationsDecorated();

}  // namespace tfmpi

#endif  // TFMPI_GLUE_REGISTRATION_INTERPOSE_H_
