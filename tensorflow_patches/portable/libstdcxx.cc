// Symbols that code from newer compilers needs, and that libstdc++ has only since GCC 9 or 11.

#include <new>
#include <sstream>

// GCC 9.
template std::basic_stringstream<char>::basic_stringstream();

namespace std {

// GCC 11: std::allocator calls it if a container needs too many elements.
[[noreturn]] void __throw_bad_array_new_length() { throw bad_array_new_length(); }

}  // namespace std
