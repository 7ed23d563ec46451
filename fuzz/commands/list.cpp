#include <fmt/format.h>

#include "fuzz/commands/commands.hpp"
#include "fuzz/sources.hpp"

namespace monoref {
namespace {

void print_contracts() {
  fmt::print("contracts: {}\n", fmt::join(contract_presets(), ", "));
  for (const ContractField& field : contract_fields())
    fmt::print("  {:<20} {:<24} {}\n", field.name,
               fmt::format("{}", fmt::join(field.values, " | ")), field.meaning);
}

void print_dimensions(const Stage& stage) {
  for (const Dimension& dimension : stage.dimensions) {
    const std::string values =
        dimension.words.empty()
            ? fmt::format("{}..{}{}", dimension.low, dimension.high,
                          dimension.edges.empty()
                              ? ""
                              : fmt::format(", {}", fmt::join(dimension.edges, ", ")))
            : fmt::format("{}", fmt::join(dimension.words, " | "));
    fmt::print("    {:<16} {}\n    {:<16}   {}\n", dimension.name, dimension.meaning, "", values);
  }
  for (const Property& property : stage.properties)
    fmt::print("    property {}: {}\n", property.name, property.statement);
  for (const Mutant& mutant : stage.mutants)
    fmt::print("    mutant {} ({}): {}\n", mutant.name, mutant.bug_case, mutant.what);
}

}  // namespace

int list_command(const CommonOptions& common) {
  const auto stages = select_stages(common.stages);
  for (const Stage* stage : stages) {
    fmt::print("{:<24} {}\n{:<24}   {}{}\n", stage->name, stage->summary, "", stage->source,
               stage->launch ? "" : "; no kernel");
    if (common.stages != "all") {
      fmt::print("{:<24}   the rule: {}\n", "",
                 fmt::join(specification_files(stage->source), ", "));
      print_dimensions(*stage);
    }
  }
  if (common.stages == "all") {
    fmt::print(
        "\nSources are in reference/spec/, codes of mutants in fuzz/bug_cases.md.\n"
        "`monoref list --stage NAME` shows a stage's dimensions, properties and mutants.\n\n");
    print_contracts();
  }
  fmt::print("list: {} stages\n", stages.size());
  return 0;
}

}  // namespace monoref
