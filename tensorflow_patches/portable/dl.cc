// dlopen and related functions, which glibc 2.34 has moved from libdl to libc. They depend on which
// library calls them ($ORIGIN, RTLD_NEXT): that stays the same, because these definitions are
// linked into each of our libraries.

#include "tensorflow_patches/portable/old_version.h"

TFMPI_OLD_VERSION(void*, dlopen, (const char* file, int mode), "GLIBC_2.2.5") {
  return old_dlopen(file, mode);
}

TFMPI_OLD_VERSION(void*, dlsym, (void* handle, const char* name), "GLIBC_2.2.5") {
  return old_dlsym(handle, name);
}

TFMPI_OLD_VERSION(char*, dlerror, (), "GLIBC_2.2.5") { return old_dlerror(); }
