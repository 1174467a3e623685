#include "tensorflow_patches/glue/variables/variable_names.h"

#include <algorithm>

namespace tfmpi {
namespace {

constexpr char kAnonymous[] = "Anonymous";

thread_local std::string t_scope;

// "Anonymous/dense/kernel/42" -> "dense/kernel"; "scope|dense/kernel" -> "dense/kernel@scope";
// "|dense/kernel" -> "dense/kernel".
std::string UnnumberedName(const std::string& key) {
  const std::string anonymous = std::string(kAnonymous) + "/";
  if (key.compare(0, anonymous.size(), anonymous) == 0) {
    return key.substr(anonymous.size(), key.rfind('/') - anonymous.size());
  }
  const size_t bar = key.find('|');
  const std::string name = key.substr(bar + 1);
  return bar == 0 ? name : name + "@" + key.substr(0, bar);
}

}  // namespace

std::string HandleKey(const std::string& container, const std::string& name,
                      const std::string& scope) {
  return container == kAnonymous ? container + "/" + name : scope + "|" + name;
}

VariableNames& VariableNames::Get() {
  static VariableNames* names = new VariableNames;
  return *names;
}

VariableNames::Entry& VariableNames::FindOrAdd(const std::string& key) {
  auto [it, is_new] = entries_.try_emplace(key);
  Entry& entry = it->second;
  if (is_new) {
    entry.name = UnnumberedName(key);
    const int number = counts_[entry.name]++;
    if (number != 0) entry.name += "#" + std::to_string(number);
  }
  return entry;
}

void VariableNames::Declare(const std::string& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  FindOrAdd(key);
}

std::string VariableNames::Name(const std::string& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  return FindOrAdd(key).name;
}

void VariableNames::MarkSynchronized(const std::string& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  synchronized_.insert(key);
}

bool VariableNames::AreSynchronized(const std::vector<std::string>& keys) {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::all_of(keys.begin(), keys.end(),
                     [this](const std::string& key) { return synchronized_.count(key) != 0; });
}

bool VariableNames::TestAndMarkSynchronized(const std::string& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  return !synchronized_.insert(key).second;
}

VariableUse VariableNames::Use(const std::string& key, const std::string& suffix) {
  std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = FindOrAdd(key);
  return {key, suffix, entry.name, entry.applied.insert(suffix).second, {}};
}

void VariableNames::Undo(const VariableUse& use) {
  if (!use.first_apply) return;
  std::lock_guard<std::mutex> lock(mutex_);
  FindOrAdd(use.key).applied.erase(use.suffix);
  for (const std::string& key : use.synchronized) synchronized_.erase(key);
}

std::string VariableNames::CompiledKey(const std::string& handle_name) {
  const std::string eager = HandleKey(kAnonymous, handle_name, "");
  std::lock_guard<std::mutex> lock(mutex_);
  return entries_.count(eager) != 0 ? eager : HandleKey("", handle_name, "");
}

void VariableNames::SetThreadScope(const std::string& scope) { t_scope = scope; }
const std::string& VariableNames::ThreadScope() { return t_scope; }

void VariableNames::SetScope(int64_t session, const std::string& scope) {
  std::lock_guard<std::mutex> lock(mutex_);
  scopes_[session] = scope;
}

std::string VariableNames::Scope(int64_t session) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = scopes_.find(session);
  return it != scopes_.end() ? it->second : "";
}

}  // namespace tfmpi
