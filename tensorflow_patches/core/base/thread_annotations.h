// Annotations that say which thread may access what. Clang checks them (-Wthread-safety); other
// compilers ignore them. tests/tree/test_style.py runs the check.

#ifndef TFMPI_CORE_BASE_THREAD_ANNOTATIONS_H_
#define TFMPI_CORE_BASE_THREAD_ANNOTATIONS_H_

#if defined(__clang__)
#define TFMPI_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define TFMPI_THREAD_ANNOTATION(x)
#endif

// A class whose instances a thread can hold as a role; `x` names the kind in diagnostics.
#define TFMPI_CAPABILITY(x) TFMPI_THREAD_ANNOTATION(capability(x))
// A member that only the holder of the role reads and writes, or the data a member points to.
#define TFMPI_GUARDED_BY(x) TFMPI_THREAD_ANNOTATION(guarded_by(x))
#define TFMPI_PT_GUARDED_BY(x) TFMPI_THREAD_ANNOTATION(pt_guarded_by(x))
// A function that only the holder of the role may call; the role is still held on return.
#define TFMPI_REQUIRES(...) TFMPI_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define TFMPI_ACQUIRE(...) TFMPI_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define TFMPI_RELEASE(...) TFMPI_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
// After a call of this function the checker assumes that the role is held.
#define TFMPI_ASSERT_CAPABILITY(x) TFMPI_THREAD_ANNOTATION(assert_capability(x))

#endif  // TFMPI_CORE_BASE_THREAD_ANNOTATIONS_H_
