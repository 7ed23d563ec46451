// Results on their way from one process to another.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "fuzz/verdict.hpp"

namespace monoref {

/// Bytes that `message_from` reads back to the same value. Texts may hold any bytes.
std::vector<std::byte> message_bytes(const nlohmann::json& message);
nlohmann::json message_from(std::span<const std::byte> bytes);

/// Every member of a result, so that nothing is lost on the way; `case_json` (fuzz/report.hpp) is
/// the form for readers.
nlohmann::json wire_json(const CaseResult& result);
CaseResult result_from_wire(const nlohmann::json& json);

}  // namespace monoref
