#ifndef TENSORFLOW_PATCHES_PORTABLE_OLD_VERSION_H_
#define TENSORFLOW_PATCHES_PORTABLE_OLD_VERSION_H_

// The wheel is for Linux with glibc 2.27 and libstdc++ of GCC 7 or newer (manylinux_2_27, like
// TensorFlow's own), wherever it was built. If the building machine's glibc would link a newer
// version of a function, this folder defines the function under its own name, as a local symbol of
// each of our libraries (export maps hide it), and forwards to the version that every glibc has.

// Declares old_NAME, that version of NAME, and begins the definition of NAME.
#define TFMPI_OLD_VERSION(type, name, parameters, version) \
  extern "C" type old_##name parameters noexcept;          \
  __asm__(".symver old_" #name "," #name "@" version);     \
  extern "C" type name parameters noexcept

#endif  // TENSORFLOW_PATCHES_PORTABLE_OLD_VERSION_H_
