// Every citation in the tree leads somewhere: sections of the specification, items of the seeds,
// recordings, bug cases. The last tests show that the ones that do not are found.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "fuzz/sources.hpp"
#include "fuzz/stage.hpp"
#include "tests/spec/citations.hpp"

namespace monoref::spec {
namespace {

namespace fs = std::filesystem;

const fs::path& root() {
  static const fs::path path = MONOREF_SOURCE_FOLDER;
  return path;
}

const Library& library() {
  static const Library read = read_library(root());
  return read;
}

Prose prose_of(const fs::path& path) {
  const std::string source = read_file(path);
  const std::string extension = path.extension().string();
  if (extension == ".md") return prose_of_markdown(source);
  const bool code = extension == ".cpp" || extension == ".hpp" || extension == ".hip" ||
                    extension == ".h" || extension == ".c" || extension == ".cu";
  return code ? prose_of_code(source) : prose_of_script(source);
}

/// The document that a bare "section 3" in a file means: the file itself, in the specification.
std::string home_of(const fs::path& path) {
  const bool specification = path.parent_path() == root() / "reference" / "spec";
  return specification ? path.stem().string() : std::string();
}

/// All text of the tree. The wrong citations that stand here as examples are left out.
std::vector<fs::path> files_of_tree() {
  std::vector<fs::path> files = {root() / "README.md", root() / "CMakeLists.txt"};
  for (const char* folder : {"reference", "device", "golden", "fuzz", "tests", "scripts"})
    for (const auto& entry : fs::recursive_directory_iterator(root() / folder))
      if (entry.is_regular_file() && entry.path().extension() != ".h5" &&
          entry.path().parent_path() != root() / "tests" / "spec")
        files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

Citations citations_in(std::string_view text) {
  return check_citations(prose_of_markdown(text), library());
}

/// The only message about a comment; nothing if all is well.
std::string complaint(std::string_view comment) {
  const Citations citations = check_citations(prose_of_code(comment), library());
  std::string messages;
  for (const Finding& finding : citations.findings) messages += finding.message + ";";
  return messages;
}

TEST(Citations, EveryOneInTheTreeLeadsSomewhere) {
  int resolved = 0;
  for (const fs::path& path : files_of_tree()) {
    const Citations citations = check_citations(prose_of(path), library(), home_of(path));
    resolved += citations.resolved;
    for (const Finding& finding : citations.findings)
      ADD_FAILURE_AT(path.c_str(), finding.line) << finding.message;
    for (const Finding& finding : check_names(read_file(path), library()).findings)
      ADD_FAILURE_AT(path.c_str(), finding.line) << finding.message;
  }
  // Else the scanner reads nothing and everything is well.
  EXPECT_GT(resolved, 600);
}

TEST(Citations, ThoseOfStagesDoAndNameTheirFiles) {
  for (const Stage& stage : all_stages()) {
    const Citations citations = citations_in(stage.source);
    for (const Finding& finding : citations.findings)
      ADD_FAILURE() << stage.name << ": source '" << stage.source << "': " << finding.message;
    EXPECT_GT(citations.resolved, 0) << stage.name << ": no source in '" << stage.source << "'";
    EXPECT_FALSE(specification_files(stage.source).empty()) << stage.name;
    for (const std::string_view file : specification_files(stage.source))
      EXPECT_TRUE(fs::exists(root() / file)) << stage.name << ": " << file;
  }
}

TEST(Citations, EveryMutantIsOfABugCaseOrOurOwn) {
  for (const Stage& stage : all_stages())
    for (const Mutant& mutant : stage.mutants)
      EXPECT_TRUE(mutant.bug_case == "own" || library().bug_cases.contains(mutant.bug_case))
          << stage.name << ", " << mutant.name << ": no bug case '" << mutant.bug_case << "'";
}

TEST(Readme, HasARowForEveryStageAndNamesTheChains) {
  const std::string text = read_file(root() / "README.md");
  for (const Stage& stage : all_stages()) {
    const std::string name(stage.name);
    const std::string mark =
        stage.chain ? fmt::format("`{}`", name) : fmt::format("\n| {} |", name);
    EXPECT_NE(text.find(mark), std::string::npos) << name;
  }
}

TEST(Citations, EveryRecordingIsDescribedAndStored) {
  std::set<std::string, std::less<>> stored;
  for (const auto& entry : fs::directory_iterator(root() / "golden" / "recorded"))
    stored.insert(entry.path().stem().string());
  EXPECT_EQ(library().recordings, stored);
}

TEST(Citations, BugCasesAreInOrderAndTellSomething) {
  std::string last;
  std::string text = read_file(root() / "fuzz" / "bug_cases.md");
  for (std::size_t at = text.find("\n### "); at != std::string::npos;) {
    const std::string code = text.substr(at + 5, 3);
    EXPECT_LT(last, code);
    const std::size_t body = text.find('\n', at + 1);
    const std::size_t next = text.find("\n#", body);
    EXPECT_GT(std::min(next, text.size()) - body, 80U) << code;
    last = code;
    at = text.find("\n### ", body);
  }
}

TEST(Citations, OfAllFormsResolve) {
  EXPECT_EQ(complaint("// mono-decode section 3.5"), "");
  EXPECT_EQ(complaint("// (mono-decode sections 3.1 to 3.4 and 10; upstream-semantics 3.1)"), "");
  EXPECT_EQ(complaint("/// mono-decode section\n/// 7, granted sections 2.1 and 3.4"), "");
  EXPECT_EQ(complaint("// mono-decode section 3, step 5, and sections 9 and 10."), "");
  EXPECT_EQ(complaint("// mono-decode section 7 (scores, bug case P10), section 10 (NaN)"), "");
  EXPECT_EQ(complaint("// upstream-semantics section 6.1, items 3 to 6"), "");
  EXPECT_EQ(complaint("// mono-decode section 8, \"f32 denormals\""), "");
  EXPECT_EQ(complaint("const char* s = \"sparse-pa: insert_index_cache; \"\n \"mono-runner\";"),
            "");
  EXPECT_EQ(complaint("// deepseek-indexer-metadata: build_prefill_chunk_metadata and its kernel"),
            "");
  EXPECT_EQ(complaint("// recordings: indexer_metadata; the recording gpu_functions"), "");
  EXPECT_EQ(complaint("// recording moe_route, case_0000: ids differ"), "");
  EXPECT_EQ(complaint("// bug cases P10, P11 and S12 to S17; (T06, D04). It was granted 2 ulps."),
            "");
}

TEST(Citations, ThatLeadNowhereAreFound) {
  EXPECT_EQ(complaint("// mono-decode section 11"), "mono-decode has no section 11;");
  EXPECT_EQ(complaint("// mono-decode sections 3.1 to 3.9"), "mono-decode has no section 3.9;");
  EXPECT_EQ(complaint("// mono-decode sections 7\n// and 12"), "mono-decode has no section 12;");
  EXPECT_EQ(complaint("// mono-decode section 3, step 9"), "mono-decode has no section 3.9;");
  EXPECT_EQ(complaint("// upstream-semantics section 6.1, items 3 to 9"),
            "upstream-semantics has no section 6.1.9;");
  EXPECT_EQ(complaint("// mono-decode section 8, \"f33 denormals\""),
            "mono-decode section 8 does not say \"f33 denormals\";");
  EXPECT_EQ(complaint("// sparse-pa: insert_cache"),
            "sparse-pa has nothing called 'insert_cache';");
  EXPECT_EQ(complaint("// recordings: indexer_data"),
            "recordings has nothing called 'indexer_data';");
  EXPECT_EQ(complaint("f(\"P99\"); f(\"P19\");"),
            "there is no bug case P99;there is no bug case P19;");
  EXPECT_EQ(complaint("// bug cases P10 and S05"), "there is no bug case S05;");
}

TEST(Citations, InOtherFormsAreFound) {
  EXPECT_EQ(complaint("// mono-decode, at 3"), "'mono-decode' without a section;");
  EXPECT_EQ(complaint("// mono-decode section three"),
            "'mono-decode' is followed by no section's number;");
  EXPECT_EQ(complaint("// mono-decode section 3.5.1"),
            "'mono-decode' is followed by no section's number;");
  EXPECT_EQ(complaint("// see section 3"),
            "a section of no document: name it, as in 'mono-decode section 3.5';");
  EXPECT_EQ(complaint("// mono_decode"), "'mono_decode' is nearly 'mono-decode';");
  EXPECT_EQ(complaint("// upstream-semantic"),
            "'upstream-semantic' is nearly 'upstream-semantics';");
  EXPECT_EQ(complaint("// sparse-pa (insert_index_cache)"),
            "write 'sparse-pa: insert_index_cache';");
  EXPECT_EQ(complaint("// the seed's row writer"),
            "which seed? Name it, as in 'sparse-pa: insert_index_cache';");
  EXPECT_EQ(complaint("// bug case P1"), "'P1' is no code of a bug case;");
  EXPECT_EQ(complaint("// bug T03"), "write 'bug case T03';");
}

TEST(Citations, OfTestsByTheirNamesAreFollowed) {
  EXPECT_EQ(check_names("TEST(BugCaseP10, A) TEST(BugCases, B)", library()).resolved, 1);
  const Citations citations = check_names("\nTEST(BugCaseP99, A)", library());
  ASSERT_EQ(citations.findings.size(), 1U);
  EXPECT_EQ(citations.findings[0].line, 2);
  EXPECT_EQ(citations.findings[0].message, "there is no bug case P99");
}

TEST(Citations, AreNotSoughtInOtherCode) {
  EXPECT_EQ(complaint("int mono_decode = P19 + section(3);  // nothing"), "");
  EXPECT_EQ(complaint("char c = '\"'; int n = 1'000; // mono-decode section 3"), "");
}

}  // namespace
}  // namespace monoref::spec
