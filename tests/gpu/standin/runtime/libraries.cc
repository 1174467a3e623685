// cuBLAS, cuDNN, cuFFT, cuSOLVER, cuSPARSE: the functions that TensorFlow needs to initialize them,
// and those that must return something. All others succeed and do nothing.

#include <cstdint>
#include <cstring>

#include "device/operations.h"

using standin::Result;

namespace {

Result Handle(void** handle) {
  *handle = new int64_t[64]();
  return 0;
}

Result Release(void* handle) {
  delete[] static_cast<int64_t*>(handle);
  return 0;
}

}  // namespace

// A cuBLAS computation, which launches one kernel on its handle's stream.
Result standin::CublasKernel(void* handle) {
  Launch(*static_cast<void**>(handle));
  return 0;
}

STANDIN_API Result cublasSetStream_v2(void* handle, void* stream) {
  *static_cast<void**>(handle) = stream;
  return 0;
}
STANDIN_API Result cublasGetStream_v2(void* handle, void** stream) {
  *stream = *static_cast<void**>(handle);
  return 0;
}
STANDIN_API Result cublasCreate_v2(void** handle) { return Handle(handle); }
STANDIN_API Result cublasDestroy_v2(void* handle) { return Release(handle); }
STANDIN_API Result cublasGetVersion_v2(void*, int* version) {
  *version = 120905;
  return 0;
}
STANDIN_API Result cublasGetProperty(int kind, int* value) {
  constexpr int kVersion[] = {12, 9, 0};
  *value = kVersion[kind];
  return 0;
}
STANDIN_API Result cublasGetMathMode(void*, int* mode) {
  *mode = 0;
  return 0;
}
STANDIN_API const char* cublasGetStatusString(Result) { return "of the stand-in GPU"; }

STANDIN_API Result cublasLtCreate(void** handle) { return Handle(handle); }
STANDIN_API Result cublasLtDestroy(void* handle) { return Release(handle); }
STANDIN_API size_t cublasLtGetVersion() { return 120905; }
STANDIN_API size_t cublasLtGetCudartVersion() { return 12090; }
STANDIN_API Result cublasLtMatmulDescCreate(void** handle, int, int) { return Handle(handle); }
STANDIN_API Result cublasLtMatmulDescDestroy(void* handle) { return Release(handle); }
STANDIN_API Result cublasLtMatmulPreferenceCreate(void** handle) { return Handle(handle); }
STANDIN_API Result cublasLtMatmulPreferenceDestroy(void* handle) { return Release(handle); }
STANDIN_API Result cublasLtMatrixLayoutCreate(void** handle, int, uint64_t, uint64_t, int64_t) {
  return Handle(handle);
}
STANDIN_API Result cublasLtMatrixLayoutDestroy(void* handle) { return Release(handle); }
STANDIN_API Result cublasLtMatmulDescGetAttribute(void*, int, void* value, size_t bytes,
                                                  size_t* written) {
  std::memset(value, 0, bytes);
  if (written != nullptr) *written = bytes;
  return 0;
}
STANDIN_API Result cublasLtMatrixLayoutGetAttribute(void*, int, void* value, size_t bytes,
                                                    size_t* written) {
  std::memset(value, 0, bytes);
  if (written != nullptr) *written = bytes;
  return 0;
}
STANDIN_API Result cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*,
                                  const void*, const void*, void*, void*, void*, const void*, void*,
                                  size_t, void* stream) {
  standin::Launch(stream);
  return 0;
}
// One algorithm, without a workspace.
STANDIN_API Result cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*,
                                                  int wanted, void* results, int* found) {
  constexpr size_t kBytes = 8 * 8 + 8 + 4 + 4 + 16;
  if (wanted > 0) std::memset(results, 0, kBytes);
  *found = wanted > 0 ? 1 : 0;
  return 0;
}

STANDIN_API Result cudnnCreate(void** handle) { return Handle(handle); }
STANDIN_API Result cudnnDestroy(void* handle) { return Release(handle); }
STANDIN_API size_t cudnnGetVersion() { return 90300; }
STANDIN_API size_t cudnnGetMaxDeviceVersion() { return 900; }
STANDIN_API size_t cudnnGetCudartVersion() { return 12090; }
STANDIN_API Result cudnnGetProperty(int kind, int* value) {
  constexpr int kVersion[] = {9, 3, 0};
  *value = kVersion[kind];
  return 0;
}
STANDIN_API const char* cudnnGetErrorString(Result) { return "of the stand-in GPU"; }
STANDIN_API void cudnnGetLastErrorString(char* text, size_t bytes) {
  if (bytes > 0) *text = 0;
}
STANDIN_API Result cudnnCreateTensorDescriptor(void** handle) { return Handle(handle); }
STANDIN_API Result cudnnDestroyTensorDescriptor(void* handle) { return Release(handle); }
STANDIN_API Result cudnnCreateFilterDescriptor(void** handle) { return Handle(handle); }
STANDIN_API Result cudnnDestroyFilterDescriptor(void* handle) { return Release(handle); }
STANDIN_API Result cudnnCreateConvolutionDescriptor(void** handle) { return Handle(handle); }
STANDIN_API Result cudnnDestroyConvolutionDescriptor(void* handle) { return Release(handle); }
STANDIN_API Result cudnnCreatePoolingDescriptor(void** handle) { return Handle(handle); }
STANDIN_API Result cudnnDestroyPoolingDescriptor(void* handle) { return Release(handle); }
STANDIN_API Result cudnnCreateActivationDescriptor(void** handle) { return Handle(handle); }
STANDIN_API Result cudnnDestroyActivationDescriptor(void* handle) { return Release(handle); }
STANDIN_API Result cudnnBackendCreateDescriptor(int, void** handle) { return Handle(handle); }
STANDIN_API Result cudnnBackendDestroyDescriptor(void* handle) { return Release(handle); }
STANDIN_API Result cudnnBackendGetAttribute(void*, int, int, int64_t, int64_t* found, void*) {
  if (found != nullptr) *found = 0;
  return 0;
}

STANDIN_API Result cufftGetVersion(int* version) {
  *version = 11404;
  return 0;
}
STANDIN_API Result cufftCreate(int* plan) {
  *plan = 1;
  return 0;
}

STANDIN_API Result cusolverDnCreate(void** handle) { return Handle(handle); }
STANDIN_API Result cusolverDnDestroy(void* handle) { return Release(handle); }
STANDIN_API Result cusolverDnSetStream(void*, void*) { return 0; }
STANDIN_API Result cusolverGetProperty(int kind, int* value) {
  constexpr int kVersion[] = {11, 7, 0};
  *value = kVersion[kind];
  return 0;
}

STANDIN_API Result cusparseCreate(void** handle) { return Handle(handle); }
STANDIN_API Result cusparseDestroy(void* handle) { return Release(handle); }
STANDIN_API Result cusparseCreateMatDescr(void** handle) { return Handle(handle); }
STANDIN_API Result cusparseDestroyMatDescr(void* handle) { return Release(handle); }
STANDIN_API Result cusparseGetProperty(int kind, int* value) {
  constexpr int kVersion[] = {12, 5, 0};
  *value = kVersion[kind];
  return 0;
}

STANDIN_API Result cuptiGetVersion(uint32_t* version) {
  *version = 24;
  return 0;
}
STANDIN_API Result cuptiGetResultString(Result, const char** text) {
  *text = "of the stand-in GPU";
  return 0;
}
STANDIN_API Result cuptiGetTimestamp(uint64_t* now) {
  *now = 0;
  return 0;
}
