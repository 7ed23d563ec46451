// Laws of caches that ranks share and of keys that are compressed. Cases have the scalars world,
// rank and compress_ratio.
#pragma once

#include "fuzz/laws/law.hpp"

namespace monoref::laws {

/// The shares of all ranks, number by number, add up to what one rank alone has (bug case T19).
/// Outputs are vectors of int32 or int64.
Property adds_up(std::vector<std::string_view> outputs, std::string statement,
                 std::function<bool(const Case&, const Outputs&)> applies = {});

/// Ratio 0 and ratio 1 both say that nothing is compressed: the same outputs (bug case T12).
Property no_ratio(std::function<bool(const Case&, const Outputs&)> applies = {});

}  // namespace monoref::laws
