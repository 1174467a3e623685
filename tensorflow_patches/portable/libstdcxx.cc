// Symbols that libstdc++ lacks before GCC 9 and 11, and that code of a newer compiler refers to.

#include <new>
#include <sstream>

// GCC 9.
template std::basic_stringstream<char>::basic_stringstream();

namespace std {

// GCC 11: for new T[n] in a container with an n that is too large.
[[noreturn]] void __throw_bad_array_new_length() { throw bad_array_new_length(); }

}  // namespace std
