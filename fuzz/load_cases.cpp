#include "fuzz/load_cases.hpp"

#include "golden/file_error.hpp"

namespace monoref {
namespace {

std::size_t bytes_of(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.layout().stored()) * tensor.element_size();
}

std::size_t bytes_of(const Case& item) {
  std::size_t bytes = 0;
  for (const NamedTensor& input : item.inputs) bytes += bytes_of(input.tensor);
  for (const ExpectedOutput& known : item.expected) bytes += bytes_of(known.tensor);
  return bytes;
}

std::size_t bytes_of(const RecordedCase& recorded) {
  std::size_t bytes = 0;
  for (const auto* tensors : {&recorded.inputs, &recorded.outputs})
    for (const NamedTensor& named : *tensors) bytes += bytes_of(named.tensor);
  return bytes;
}

}  // namespace

CaseFile::CaseFile(const std::filesystem::path& path) : path_(path), content_(read_any(path)) {
  if (recording() == nullptr) return;
  judge_ = find_judge(recording()->stage);
  adopter_ = stage_for_recording(recording()->stage);
}

bool CaseFile::has_cases() const {
  return recording() == nullptr || adopter_ != nullptr;
}

void CaseFile::require_judgeable() const {
  if (judge_ == nullptr && !has_cases())
    throw FileError(path_.string(),
                    fmt::format("no stage here adopts recordings of '{}'", recording()->stage));
}

std::size_t CaseFile::size() const {
  return recording() != nullptr ? recording()->cases.size()
                                : std::get<std::vector<Case>>(content_).size();
}

std::size_t CaseFile::bytes() const {
  std::size_t bytes = 0;
  if (recording() != nullptr)
    for (const RecordedCase& recorded : recording()->cases) bytes += bytes_of(recorded);
  else
    for (const Case& item : std::get<std::vector<Case>>(content_)) bytes += bytes_of(item);
  return bytes;
}

CaseResult CaseFile::header(std::size_t index) const {
  if (recording() == nullptr) {
    const Case& item = std::get<std::vector<Case>>(content_).at(index);
    return {.stage = item.stage,
            .title = item.title,
            .contract = item.contract.text(),
            .line = item.line};
  }
  const std::string_view stage = judge_ != nullptr ? judge_->stage : adopter_->name;
  const std::string_view contract = judge_ != nullptr ? judge_->contract : "as recorded";
  return {.stage = std::string(stage),
          .title = recorded(index).title,
          .contract = std::string(contract)};
}

Case CaseFile::take(std::size_t index) {
  if (recording() == nullptr) return std::move(std::get<std::vector<Case>>(content_).at(index));
  Case item = adopter_->adopt(*recording(), recorded(index));
  item.stage = adopter_->name;
  item.title = recorded(index).title;
  item.provenance = {"recorded", fmt::format("{}, {}", recording()->source, recording()->device)};
  return item;
}

const RecordedCase& CaseFile::recorded(std::size_t index) const {
  return recording()->cases.at(index);
}

std::vector<Case> load_cases(const std::filesystem::path& path) {
  CaseFile file(path);
  if (!file.has_cases())
    throw FileError(path.string(), "no stage here adopts recordings of its kind as cases");
  std::vector<Case> cases;
  for (std::size_t i = 0; i < file.size(); ++i) cases.push_back(file.take(i));
  return cases;
}

}  // namespace monoref
