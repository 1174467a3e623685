#ifndef TENSORFLOW_PATCHES_PORTABLE_OLD_VERSION_H_
#define TENSORFLOW_PATCHES_PORTABLE_OLD_VERSION_H_

// The wheel is for Linux from glibc 2.27 and GCC 7's libstdc++ on (manylinux_2_27, as TensorFlow's
// own), wherever it was built. A function that the building machine has in a newer version only is
// defined here under its own name, as a local symbol of the library (its export map hides it), and
// passes the call on to the version that every glibc has.

// Declares old_NAME, which is NAME of that version, and begins the definition of NAME.
#define TFMPI_OLD_VERSION(type, name, parameters, version) \
  extern "C" type old_##name parameters noexcept;          \
  __asm__(".symver old_" #name "," #name "@" version);     \
  extern "C" type name parameters noexcept

#endif  // TENSORFLOW_PATCHES_PORTABLE_OLD_VERSION_H_
