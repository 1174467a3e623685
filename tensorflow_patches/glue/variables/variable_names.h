// The names that variables have on every rank.
//
// A v1 variable carries its graph name, unique in its session; sessions are told apart by a scope
// that Python agrees on. An eager variable's handle carries "debug name/per-process id": the id is
// dropped and variables of one debug name are numbered in the order in which the program first
// trains them, which Python declares as it traces (python/_src/runtime/hooks.py) and which, for
// eager code, is the order of the first Apply. So variables that only one rank has, or that it
// never trains, shift no one's number. Thread-safe; owned by the process.

#ifndef TFMPI_GLUE_VARIABLES_VARIABLE_NAMES_H_
#define TFMPI_GLUE_VARIABLES_VARIABLE_NAMES_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace tfmpi {

struct VariableUse {
  std::string name;          // the same on every rank
  bool first_apply = false;  // this kind of Apply op had not been seen for this variable
};

class VariableNames {
 public:
  static VariableNames& Get();

  // `key` names a variable in this process: see HandleKey.
  void Declare(const std::string& key);
  // The name that the variable has on every rank; declares it.
  std::string Name(const std::string& key);
  void MarkSynchronized(const std::string& key);
  bool AreSynchronized(const std::vector<std::string>& keys);
  // True if rank 0's value has been made this rank's; from now on it counts as if it had.
  bool TestAndMarkSynchronized(const std::string& key);
  // For an Apply op of the kind that `suffix` tells; notes that it was seen.
  VariableUse Use(const std::string& key, const std::string& suffix);

  // The key of a resource variable of which only the handle's name is known, as it is while XLA
  // compiles: an eager variable's if one was declared under that name. Sessions have no scope
  // there.
  std::string CompiledKey(const std::string& handle_name);

  // The scope of all variables of the session that carries this number in its metadata.
  void SetScope(int64_t session, const std::string& scope);
  std::string Scope(int64_t session);
  // That of the session whose kernels this thread makes from now on; empty if it is not known.
  static void SetThreadScope(const std::string& scope);
  static const std::string& ThreadScope();

 private:
  struct Entry {
    std::string name;
    std::unordered_set<std::string> applied;  // suffixes
  };

  Entry& Find(const std::string& key);

  std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;  // guarded by mutex_, as all below
  std::unordered_map<std::string, int> counts_;
  std::unordered_set<std::string> synchronized_;  // keys; slots too, which have no entry
  std::unordered_map<int64_t, std::string> scopes_;
};

// Keys: eager handles are "Anonymous/<debug name>/<id>", all others "<scope>|<name>".
std::string HandleKey(const std::string& container, const std::string& name,
                      const std::string& scope);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_VARIABLES_VARIABLE_NAMES_H_
