#include "fuzz/result_wire.hpp"

namespace monoref {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OutputTally, name, exact, allowed, wrong, undecided, elements)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Difference, output, index, expected, got, bound, made_by, low,
                                   high)

namespace {

nlohmann::json run_wire(const RunResult& run) {
  nlohmann::json json{{"runner", run.runner},   {"wave", run.wave},       {"verdict", run.verdict},
                      {"outputs", run.outputs}, {"message", run.message}, {"is_case", run.is_case}};
  if (run.first_difference) json["first_difference"] = *run.first_difference;
  return json;
}

RunResult run_from_wire(const nlohmann::json& json) {
  RunResult run;
  json.at("runner").get_to(run.runner);
  json.at("wave").get_to(run.wave);
  json.at("verdict").get_to(run.verdict);
  json.at("outputs").get_to(run.outputs);
  json.at("message").get_to(run.message);
  json.at("is_case").get_to(run.is_case);
  if (json.contains("first_difference"))
    run.first_difference = json.at("first_difference").get<Difference>();
  return run;
}

}  // namespace

std::vector<std::byte> message_bytes(const nlohmann::json& message) {
  const std::vector<std::uint8_t> packed = nlohmann::json::to_msgpack(message);
  const auto bytes = std::as_bytes(std::span(packed));
  return {bytes.begin(), bytes.end()};
}

nlohmann::json message_from(std::span<const std::byte> bytes) {
  const auto* const begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return nlohmann::json::from_msgpack(begin, begin + bytes.size());
}

nlohmann::json wire_json(const CaseResult& result) {
  nlohmann::json json{
      {"stage", result.stage},          {"title", result.title},
      {"contract", result.contract},    {"line", result.line},
      {"repro", result.repro},          {"refusal_was_expected", result.refusal_was_expected},
      {"runs", nlohmann::json::array()}};
  for (const RunResult& run : result.runs) json["runs"].push_back(run_wire(run));
  return json;
}

CaseResult result_from_wire(const nlohmann::json& json) {
  CaseResult result;
  json.at("stage").get_to(result.stage);
  json.at("title").get_to(result.title);
  json.at("contract").get_to(result.contract);
  json.at("line").get_to(result.line);
  json.at("repro").get_to(result.repro);
  json.at("refusal_was_expected").get_to(result.refusal_was_expected);
  for (const nlohmann::json& run : json.at("runs")) result.runs.push_back(run_from_wire(run));
  return result;
}

}  // namespace monoref
