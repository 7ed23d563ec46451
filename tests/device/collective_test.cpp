// Functions of kernels that threads must call together are marked so: what has a barrier or an
// exchange in it, directly or by a call, says MONOREF_BLOCK_COLLECTIVE or MONOREF_WAVE_COLLECTIVE.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace monoref::device {
namespace {

namespace fs = std::filesystem;

enum class Collective : std::uint8_t { kNo, kWave, kBlock };

struct Function {
  std::string name;
  Collective marked;
  std::string body;
};

Collective mark_in(const std::string& text) {
  if (text.find("MONOREF_BLOCK_COLLECTIVE") != std::string::npos) return Collective::kBlock;
  if (text.find("MONOREF_WAVE_COLLECTIVE") != std::string::npos) return Collective::kWave;
  return Collective::kNo;
}

/// The text without comments.
std::string code_of(std::istream& source) {
  std::string code;
  for (std::string line; std::getline(source, line);)
    code += line.substr(0, line.find("//")) + '\n';
  return code;
}

/// The functions of a source that are written MONOREF_DEVICE or MONOREF_MEMBER.
std::vector<Function> functions_of(const std::string& code) {
  static const std::regex head(
      R"(MONOREF_(?:DEVICE|MEMBER)\b([^{;]*?)\b(\w+)\s*\([^{;]*\)\s*(?:const\s*)?\{)");
  std::vector<Function> functions;
  for (std::sregex_iterator at(code.begin(), code.end(), head), end; at != end; ++at) {
    std::size_t stop = static_cast<std::size_t>(at->position() + at->length());
    const std::size_t start = stop;
    for (int depth = 1; depth > 0; ++stop) depth += (code[stop] == '{') - (code[stop] == '}');
    functions.push_back({(*at)[2], mark_in((*at)[1]), code.substr(start, stop - start)});
  }
  return functions;
}

/// What a body asks of its callers, by its operations and by the marked functions it calls.
Collective needed_by(const Function& function, const std::map<std::string, Collective>& marked) {
  static const std::regex call(R"(\b(\w+)\s*(?:<[^;{}()]*>)?\()");
  static const std::set<std::string> exchanges{
      "shuffle", "shuffle_xor", "shuffle_up", "shuffle_down", "ballot", "any", "all"};
  Collective needed = Collective::kNo;
  for (std::sregex_iterator at(function.body.begin(), function.body.end(), call), end; at != end;
       ++at) {
    const std::string name = (*at)[1];
    if (name == function.name) continue;
    if (name == "__syncthreads") return Collective::kBlock;
    if (exchanges.contains(name)) needed = std::max(needed, Collective::kWave);
    if (const auto known = marked.find(name); known != marked.end())
      needed = std::max(needed, known->second);
  }
  return needed;
}

/// Names of functions that ask more than their marks say.
std::vector<std::string> unmarked(const std::vector<Function>& functions) {
  std::map<std::string, Collective> marked;
  for (const Function& function : functions)
    marked[function.name] = std::max(marked[function.name], function.marked);
  std::vector<std::string> names;
  for (const Function& function : functions)
    if (function.marked < needed_by(function, marked)) names.push_back(function.name);
  return names;
}

std::vector<std::string> unmarked_in(const std::string& text) {
  std::istringstream source(text);
  return unmarked(functions_of(code_of(source)));
}

using Names = std::vector<std::string>;

TEST(Collectives, AreFoundWhereTheMarkIsMissing) {
  EXPECT_EQ(unmarked_in("MONOREF_DEVICE int f(int x) { if (x) { __syncthreads(); } return x; }"),
            Names{"f"});
  EXPECT_EQ(unmarked_in("MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void f() { __syncthreads(); }\n"
                        "MONOREF_DEVICE void g() { f(); }  // calls f\n"
                        "MONOREF_DEVICE void h() {}  // f() in a comment"),
            Names{"g"});
  EXPECT_EQ(
      unmarked_in("MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE void f() { simt::any(true); }\n"
                  "MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE void g() { f(); __syncthreads(); }"),
      Names{"g"});
}

TEST(Collectives, OfTheKernelsAreAllMarked) {
  std::vector<Function> functions;
  for (const auto& entry :
       fs::directory_iterator(fs::path(MONOREF_SOURCE_FOLDER) / "device/kernels")) {
    if (entry.path().extension() == ".md") continue;
    std::ifstream source(entry.path());
    for (Function& function : functions_of(code_of(source)))
      functions.push_back(std::move(function));
  }
  EXPECT_GT(functions.size(), 300U);
  EXPECT_EQ(unmarked(functions), Names{});
}

}  // namespace
}  // namespace monoref::device
