// What libstdc++ has had since GCC 8, and code that a newer compiler makes asks for.

#include <new>
#include <sstream>

// GCC 9.
template std::basic_stringstream<char>::basic_stringstream();

namespace std {

// GCC 11: a new T[n] in a container, with an n that is too large.
[[noreturn]] void __throw_bad_array_new_length() { throw bad_array_new_length(); }

}  // namespace std
