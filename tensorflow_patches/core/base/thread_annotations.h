// Which thread may touch what, in words that Clang checks (-Wthread-safety); other compilers pass
// over them. tests/tree/test_style.py runs the check.

#ifndef TFMPI_CORE_BASE_THREAD_ANNOTATIONS_H_
#define TFMPI_CORE_BASE_THREAD_ANNOTATIONS_H_

#if defined(__clang__)
#define TFMPI_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define TFMPI_THREAD_ANNOTATION(x)
#endif

// A class that a thread can have, as a role; `x` names its kind in diagnostics.
#define TFMPI_CAPABILITY(x) TFMPI_THREAD_ANNOTATION(capability(x))
// A member that is read and written only by who has the role; what a member points to.
#define TFMPI_GUARDED_BY(x) TFMPI_THREAD_ANNOTATION(guarded_by(x))
#define TFMPI_PT_GUARDED_BY(x) TFMPI_THREAD_ANNOTATION(pt_guarded_by(x))
// A function that is called, and left, by who has the role.
#define TFMPI_REQUIRES(...) TFMPI_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define TFMPI_ACQUIRE(...) TFMPI_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define TFMPI_RELEASE(...) TFMPI_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
// From here on the role counts as had: why is said where it is called.
#define TFMPI_ASSERT_CAPABILITY(x) TFMPI_THREAD_ANNOTATION(assert_capability(x))

#endif  // TFMPI_CORE_BASE_THREAD_ANNOTATIONS_H_
