#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "fuzz/commands/commands.hpp"
#include "fuzz/report.hpp"
#include "fuzz/sources.hpp"

namespace monoref {
namespace {

void print_contracts() {
  say("contracts: {}\n", fmt::join(contract_presets(), ", "));
  for (const ContractField& field : contract_fields())
    say("  {:<20} {:<24} {}\n", field.name, fmt::format("{}", fmt::join(field.values, " | ")),
        field.meaning);
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
    say("    {:<16} {}\n    {:<16}   {}\n", dimension.name, dimension.meaning, "", values);
  }
  for (const Property& property : stage.properties)
    say("    property {}: {}\n", property.name, property.statement);
  for (const Mutant& mutant : stage.mutants)
    say("    mutant {} ({}): {}\n", mutant.name, mutant.bug_case, mutant.what);
}

bool has_kernels(const Stage& stage, const std::optional<Contract>& contract) {
  return stage.launch != nullptr &&
         (!contract || !stage.has_kernels || stage.has_kernels(*contract));
}

nlohmann::json dimension_json(const Dimension& dimension) {
  nlohmann::json object{
      {"name", dimension.name}, {"meaning", dimension.meaning}, {"simplest", dimension.simplest}};
  if (!dimension.words.empty()) {
    object["words"] = dimension.words;
  } else {
    object["low"] = dimension.low;
    object["high"] = dimension.high;
    object["edges"] = dimension.edges;
  }
  return object;
}

nlohmann::json stage_json(const Stage& stage, const std::optional<Contract>& contract) {
  nlohmann::json object{
      {"stage", stage.name},          {"summary", stage.summary},
      {"source", stage.source},       {"kernels", has_kernels(stage, contract)},
      {"contracts", stage.contracts}, {"generator_version", stage.generator_version}};
  for (const char* list : {"dimensions", "properties", "mutants"})
    object[list] = nlohmann::json::array();
  for (const Dimension& dimension : stage.dimensions)
    object["dimensions"].push_back(dimension_json(dimension));
  for (const Property& property : stage.properties)
    object["properties"].push_back({{"name", property.name}, {"statement", property.statement}});
  for (const Mutant& mutant : stage.mutants)
    object["mutants"].push_back(
        {{"name", mutant.name}, {"bug_case", mutant.bug_case}, {"what", mutant.what}});
  return object;
}

nlohmann::json contracts_json() {
  nlohmann::json fields = nlohmann::json::array();
  for (const ContractField& field : contract_fields())
    fields.push_back({{"name", field.name}, {"values", field.values}, {"meaning", field.meaning}});
  return {{"presets", contract_presets()}, {"fields", fields}};
}

}  // namespace

int list_command(const CommonOptions& common) {
  const auto stages = select_stages(common.stages);
  const auto contract = common.parsed_contract();
  JsonFile json(common.json);
  nlohmann::json objects = nlohmann::json::array();
  for (const Stage* stage : stages) {
    const bool runs = has_kernels(*stage, contract);
    say("{:<24} {}\n{:<24}   {}{}\n", stage->name, stage->summary, "", stage->source,
        runs             ? ""
        : !stage->launch ? "; no kernel"
                         : fmt::format("; no kernel under {}", contract->text()));
    if (common.stages != "all") {
      say("{:<24}   the rule: {}\n", "", fmt::join(specification_files(stage->source), ", "));
      print_dimensions(*stage);
    }
    objects.push_back(stage_json(*stage, contract));
  }
  if (common.stages == "all") {
    say("\nSources are in reference/spec/, codes of mutants in fuzz/bug_cases.md.\n"
        "`monoref list --stage NAME` shows a stage's dimensions, properties and mutants.\n\n");
    print_contracts();
  }
  json.set("stages", objects);
  json.set("contracts", contracts_json());
  const bool written = json.finish({{"command", "list"}, {"stages", stages.size()}});
  say("list: {} stages\n", stages.size());
  return written ? 0 : 2;
}

}  // namespace monoref
