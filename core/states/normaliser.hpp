// SPDX-License-Identifier: Apache-2.0
// The normaliser: running statistics of what a feature set measures in deviations from the usual, and their frozen
// form.
#ifndef REINET_NORMALISER_HPP
#define REINET_NORMALISER_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace reinet {

// An input of a feature set's normaliser. Until there is training, statistics of a typical cellular path stand in.
struct Input {
  const char* name;
  const char* formula;
  double typical_mean, typical_sd, typical_minimum;
};

// Running statistics of one input (Welford), plain doubles so that a NumPy row is one.
struct InputStatistics {
  double count, mean, m2, minimum;

  void add(double x) {
    minimum = count > 0 ? std::min(minimum, x) : x;
    count += 1;
    const double before = x - mean;
    mean += before / count;
    m2 += before * (x - mean);
  }

  // Merges as if the other's values had been added here (Chan et al.).
  void merge(const InputStatistics& other) {
    if (other.count <= 0) return;
    minimum = count > 0 ? std::min(minimum, other.minimum) : other.minimum;
    const double total = count + other.count;
    const double apart = other.mean - mean;
    mean += apart * other.count / total;
    m2 += other.m2 + apart * apart * count * other.count / total;
    count = total;
  }
};
using NormaliserTable = std::vector<InputStatistics>;  // one row for each input of the feature set

// The typical statistics weigh as much as two records, so that training that starts from them soon forgets them.
constexpr double kTypicalCount = 2.0;

template <class Inputs>
NormaliserTable typical_table(const Inputs& inputs) {
  NormaliserTable table;
  for (const Input& i : inputs)
    table.push_back({kTypicalCount, i.typical_mean, i.typical_sd * i.typical_sd * kTypicalCount, i.typical_minimum});
  return table;
}

// What the schema hash says of the calls below.
constexpr const char* kNormalisedFormula = "(x - minimum) / sqrt(m2 / count)";

// The table frozen into what the state needs.
class Normaliser {
 public:
  explicit Normaliser(const NormaliserTable& table) {
    for (const InputStatistics& s : table) {
      // S8: without a spread there is no z-score; the input then says nothing, and reads 0.
      inputs_.push_back({s.minimum, s.count >= 2 && s.m2 > 0 ? 1.0 / std::sqrt(s.m2 / s.count) : 0.0});
    }
  }
  double operator()(std::size_t input, double x) const {
    return (x - inputs_[input].minimum) * inputs_[input].inverse_sd;
  }

 private:
  struct Frozen {
    double minimum, inverse_sd;
  };
  std::vector<Frozen> inputs_;
};

}  // namespace reinet

#endif
