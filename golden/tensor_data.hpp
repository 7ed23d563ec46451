// What both formats say about attributes and tensors.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "golden/tree.hpp"
#include "reference/core/tensor.hpp"

namespace monoref {

/// Reads the attributes of one object; each accessor throws ContentError if the attribute is
/// missing or of another kind. `finish` throws if an attribute was never asked for.
class AttributeReader {
 public:
  AttributeReader(const std::vector<TreeAttribute>& attributes, FilePlace place);

  const std::string& text(std::string_view name);
  std::int64_t integer(std::string_view name);
  std::uint64_t natural(std::string_view name);
  const std::vector<std::int64_t>& list(std::string_view name);
  void finish() const;

 private:
  template <class T>
  const T& get(std::string_view name, std::string_view kind);

  const std::vector<TreeAttribute>& attributes_;
  std::vector<bool> asked_;
  FilePlace place_;
};

/// How elements of a type are stored: BF16 as uint16 bits, FP8 and E8M0 as uint8 bits, the rest as
/// themselves.
StoredType stored_type(DType type);

/// The type named by a `dtype` attribute; throws ContentError if it is unknown or not stored as
/// `stored`.
DType dtype_from_attribute(const std::string& name, StoredType stored, const FilePlace& place);

/// Throws ContentError if a layout breaks a limit that every tensor in a file keeps: rank, numbers
/// that overflow or are negative, or a run of storage larger than a dataset may be.
void check_layout(const Layout& layout, DType type, const FilePlace& place);

/// A dense tensor with the dataset's dims and bytes.
Tensor dense_tensor(DType type, const TreeDataset& dataset, const FilePlace& place);

/// A tensor of any layout whose stored elements, run after run, are the dataset's bytes.
Tensor laid_out_tensor(DType type, const Layout& layout, const TreeDataset& dataset,
                       const FilePlace& place);

}  // namespace monoref
