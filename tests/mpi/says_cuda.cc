// LD_PRELOAD=libsays_cuda.so makes an MPI claim to be CUDA-aware if SAYS_CUDA is 1.

#include <cstdlib>
#include <cstring>

extern "C" __attribute__((visibility("default"))) int MPIX_Query_cuda_support() {
  const char* const answer = std::getenv("SAYS_CUDA");
  return answer != nullptr && std::strcmp(answer, "1") == 0 ? 1 : 0;
}
