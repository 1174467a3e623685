// Names of variables that are the same on every rank.
//
// A compat.v1 variable has its graph name, unique in its session; sessions have scopes, on which
// the ranks' Python code agrees. An eager variable's handle is named "debug name/per-process id":
// the id is dropped, and variables with the same debug name are numbered in the order in which the
// program first trains them. Python declares them in that order while it traces
// (python/_src/variables/naming.py); in eager code it is the order of the first optimizer ops. So
// variables that exist on only one rank, or are never trained, change no other variable's number.
// Thread-safe; never destroyed.

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
  std::string key, suffix;
  std::string name;                       // the same on every rank
  bool first_apply = false;               // of this kind of optimizer op on this variable
  std::vector<std::string> synchronized;  // keys that have counted as synchronized since this use
};

class VariableNames {
 public:
  static VariableNames& Get();

  // `key` identifies a variable in this process: see HandleKey.
  void Declare(const std::string& key);
  // Returns the variable's name, the same on every rank; declares it.
  std::string Name(const std::string& key);
  void MarkSynchronized(const std::string& key);
  bool AreSynchronized(const std::vector<std::string>& keys);
  // Whether the variable was already synchronized; from now on it counts as synchronized.
  bool TestAndMarkSynchronized(const std::string& key);
  // For an optimizer op of the kind that `suffix` names; records that it has been seen.
  VariableUse Use(const std::string& key, const std::string& suffix);
  // For an optimizer op that has failed: undoes what `use` recorded, so the next one starts anew.
  void Undo(const VariableUse& use);

  // The key of a resource variable of which only the handle's name is known, as during XLA
  // compilation: that of an eager variable if one was declared with this name. Sessions have no
  // scope there.
  std::string CompiledKey(const std::string& handle_name);

  // Sets the scope of all variables of the session with this number in its metadata.
  void SetScope(int64_t session, const std::string& scope);
  std::string Scope(int64_t session);
  // Sets the scope of the session whose kernels this thread creates from now on; empty: unknown.
  static void SetThreadScope(const std::string& scope);
  static const std::string& ThreadScope();

 private:
  struct Entry {
    std::string name;
    std::unordered_set<std::string> applied;  // suffixes
  };

  Entry& FindOrAdd(const std::string& key);

  std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;  // guarded by mutex_, like all below
  std::unordered_map<std::string, int> counts_;
  std::unordered_set<std::string> synchronized_;  // keys, including slots, which have no entry
  std::unordered_map<int64_t, std::string> scopes_;
};

// Keys: eager handles are "Anonymous/<debug name>/<id>", all others "<scope>|<name>".
std::string HandleKey(const std::string& container, const std::string& name,
                      const std::string& scope);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_VARIABLES_VARIABLE_NAMES_H_
