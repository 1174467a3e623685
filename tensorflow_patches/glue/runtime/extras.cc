#include "tensorflow_patches/glue/runtime/extras.h"

#include <algorithm>
#include <string_view>

namespace tfmpi {
namespace {

struct Named {
  std::string_view name;
  bool Extras::*on;
};

constexpr Named kNames[] = {
    {"kept_memory", &Extras::kept_memory},
    {"scatter_in_place", &Extras::scatter_in_place},
    {"rows_ahead", &Extras::rows_ahead},
    {"compiled_scatter", &Extras::compiled_scatter},
    {"divided_updates", &Extras::divided_updates},
    {"distinct_rows", &Extras::distinct_rows},
    {"response_bypass", &Extras::response_bypass},
    {"streaming_stores", &Extras::streaming_stores},
    {"synchronous_updates", &Extras::synchronous_updates},
};

Extras g_extras;

}  // namespace

bool ParseExtras(const std::string& names, Extras* extras) {
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    const std::string_view name = std::string_view(names).substr(begin, end - begin);
    const auto* const known =
        std::find_if(std::begin(kNames), std::end(kNames),
                     [name](const Named& named) { return named.name == name; });
    if (known == std::end(kNames)) return false;
    extras->*known->on = true;
    begin = end + 1;
  }
  return true;
}

const Extras& EnabledExtras() { return g_extras; }
void SetExtras(const Extras& extras) { g_extras = extras; }

}  // namespace tfmpi
