// The mutants of the stages are the faults in the source: none is missing, and none is of no stage.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "fuzz/stage.hpp"

namespace monoref {
namespace {

namespace fs = std::filesystem;

/// The names that the source plants; a fault may stand where no kernel is made of the text.
std::set<std::string> names_in_source() {
  static const std::regex planted(R"(MONOREF_FAULT(?:_NAME|_AT|_NAME_AT|_ELSEWHERE)?\(\s*(\w+))");
  std::set<std::string> names;
  for (const char* folder : {"device/kernels", "device/simt", "fuzz/stages"})
    for (const auto& entry : fs::directory_iterator(fs::path(MONOREF_SOURCE_FOLDER) / folder)) {
      if (entry.path().extension() == ".md") continue;
      std::ifstream stream(entry.path());
      std::stringstream text;
      bool of_macro = false;  // what a macro's own text asks for is no place of a fault
      for (std::string line; std::getline(stream, line);) {
        if (!of_macro && !line.starts_with("#define")) text << line << '\n';
        of_macro = (of_macro || line.starts_with("#define")) && line.ends_with('\\');
      }
      const std::string source = text.str();
      for (std::sregex_iterator at(source.begin(), source.end(), planted), end; at != end; ++at)
        names.insert((*at)[1]);
    }
  return names;
}

TEST(Faults, OfTheSourceAreAllListed) {
  std::set<std::string> listed;
  for (const device::Fault& fault : device::planted_faults())
    listed.insert(std::string(fault.name));
  EXPECT_EQ(names_in_source(), listed);
  EXPECT_GT(listed.size(), 300U);
}

TEST(Faults, AreMutantsOfTheStagesThatTheyAreOf) {
  for (const device::Fault& fault : device::planted_faults()) {
    std::size_t stages = 0;
    for (const Stage& stage : all_stages()) {
      const bool listed = std::ranges::find(stage.mutants, fault) != stage.mutants.end();
      EXPECT_EQ(listed, fault.is_of(stage.name)) << stage.name << ", " << fault.name;
      stages += listed ? 1 : 0;
    }
    const std::size_t named =
        fault.stages.size() - static_cast<std::size_t>(std::ranges::count(fault.stages, ""));
    EXPECT_EQ(stages, std::max<std::size_t>(named, 1)) << fault.name << " in " << fault.file;
  }
}

}  // namespace
}  // namespace monoref
