// Operations that the driver's and the runtime's functions share.

#ifndef TFMPI_TESTS_GPU_STANDIN_DEVICE_OPERATIONS_H_
#define TFMPI_TESTS_GPU_STANDIN_DEVICE_OPERATIONS_H_

#include "device/stream.h"

namespace standin {

// Either side may be device or host memory, according to the addresses. As in CUDA, a copy from
// pageable memory is staged before the function returns, and a copy to it is waited for.
Result Copy(Pointer to, Pointer from, size_t bytes, void* stream, bool wait);
Result CopyRows(const Copy3D& copy, void* stream, bool wait);
Operation RowsOperation(const Copy3D& copy);
Copy3D Rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
            size_t height);
Result FillMemory(const Fill& fill, void* stream, bool wait);
Operation FillOperation(const Fill& fill);
// Only counts.
Result Launch(void* stream);
Result Call(void* stream, HostFunction function, void* argument);

Result AllocateDevice(size_t bytes, Pointer* pointer);
// Waits for the device, as CUDA does.
Result FreeDevice(Pointer pointer);

Context* PrimaryContext(int ordinal);  //  current for the thread from now on
inline Pointer ToPointer(const void* memory) { return reinterpret_cast<Pointer>(memory); }

}  // namespace standin

#endif  // TFMPI_TESTS_GPU_STANDIN_DEVICE_OPERATIONS_H_
