// SPDX-License-Identifier: Apache-2.0
//
// Verus's delay profile: the delay that each window gave, averaged as ACKs come, and once a second a smooth curve
// through these points, which is read backwards. The curve is the one that Verus's implementation asks ALGLIB for
// (spline1dfitpenalized): a natural cubic spline of some equidistant nodes that minimises the squares of its errors
// plus a penalty on its squared second derivative, and goes on as a straight line.
#ifndef REINET_DELAY_PROFILE_HPP
#define REINET_DELAY_PROFILE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace reinet {

// A natural cubic spline through equidistant nodes, fitted to points with a penalty.
class PenalisedSpline {
 public:
  using Values = std::vector<double>;

  // Fits to points (x, y), in the order of x, of which there are at least two; nodes: at least 4.
  void fit(const Values& x, const Values& y, std::size_t nodes) {
    begin_ = x.front();
    spacing_ = (x.back() - begin_) / static_cast<double>(nodes - 1);
    std::vector<Values> bends(nodes, Values(nodes)), basis(x.size(), Values(nodes));
    for (std::size_t b = 0; b < nodes; ++b) {
      values_.assign(nodes, 0.0);
      values_[b] = 1.0;
      bend();
      bends[b] = bends_;
      for (std::size_t i = 0; i < x.size(); ++i) basis[i][b] = at(x[i]);
    }
    std::vector<Values> normal(nodes, Values(nodes)), penalty = normal;
    Values right(nodes);
    double largest_norm = 0.0, largest_penalty = 0.0;
    for (std::size_t a = 0; a < nodes; ++a) {
      for (std::size_t b = 0; b <= a; ++b) {
        for (const Values& row : basis) normal[a][b] += row[a] * row[b];
        penalty[a][b] = bending(bends[a], bends[b]);
      }
      for (std::size_t i = 0; i < x.size(); ++i) right[a] += basis[i][a] * y[i];
      largest_norm = std::max(largest_norm, normal[a][a]);
      largest_penalty = std::max(largest_penalty, penalty[a][a]);
    }
    const double weight = kPenalty * largest_norm / largest_penalty;
    for (std::size_t a = 0; a < nodes; ++a) {
      for (std::size_t b = 0; b <= a; ++b) normal[a][b] += weight * penalty[a][b];
      normal[a][a] += kRidge * largest_norm * (1.0 + weight);
    }
    values_ = solved(std::move(normal), std::move(right));
    bend();
  }

  double at(double x) const {
    const double last = static_cast<double>(values_.size() - 1), t = (x - begin_) / spacing_;
    if (t <= 0.0) return values_[0] + t * (values_[1] - values_[0] - bends_[1] / 6.0);
    const std::size_t n = values_.size();
    if (t >= last) return values_[n - 1] + (t - last) * (values_[n - 1] - values_[n - 2] + bends_[n - 2] / 6.0);
    const auto i = static_cast<std::size_t>(t);
    const double b = t - static_cast<double>(i), a = 1.0 - b;
    return a * values_[i] + b * values_[i + 1] + ((a * a * a - a) * bends_[i] + (b * b * b - b) * bends_[i + 1]) / 6.0;
  }

 private:
  static constexpr double kPenalty = 100.0;  // 10^rho, rho = 2.0 as Verus has it; relative to the largest of both sides
  static constexpr double kRidge = 1e-15;    // keeps the equations solvable where a node has no points

  // Fills the second derivatives at the nodes, in units of their spacing: those at both ends are 0.
  void bend() {
    const std::size_t n = values_.size();
    bends_.assign(n, 0.0);
    Values share(n, 0.0);
    for (std::size_t i = 1; i + 1 < n; ++i) {
      const double pivot = 4.0 - share[i - 1];
      share[i] = 1.0 / pivot;
      bends_[i] = (6.0 * (values_[i - 1] - 2.0 * values_[i] + values_[i + 1]) - bends_[i - 1]) / pivot;
    }
    for (std::size_t i = n - 2; i > 0; --i) bends_[i] -= share[i] * bends_[i + 1];
  }

  // The integral of the product of two second derivatives, which are straight lines between nodes.
  static double bending(const Values& f, const Values& g) {
    double sum = 0.0;
    for (std::size_t i = 0; i + 1 < f.size(); ++i)
      sum += (f[i] * g[i] + f[i + 1] * g[i + 1]) / 3.0 + (f[i] * g[i + 1] + f[i + 1] * g[i]) / 6.0;
    return sum;
  }

  // Cholesky's; of the symmetric matrix the lower half is read.
  static Values solved(std::vector<Values> l, Values x) {
    const std::size_t n = x.size();
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        for (std::size_t k = 0; k < j; ++k) l[i][j] -= l[i][k] * l[j][k];
        l[i][j] = i == j ? std::sqrt(l[i][i]) : l[i][j] / l[j][j];
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t k = 0; k < i; ++k) x[i] -= l[i][k] * x[k];
      x[i] /= l[i][i];
    }
    for (std::size_t i = n; i-- > 0;) {
      for (std::size_t k = i + 1; k < n; ++k) x[i] -= l[k][i] * x[k];
      x[i] /= l[i][i];
    }
    return x;
  }

  double begin_ = 0.0, spacing_ = 1.0;
  Values values_, bends_;
};

class DelayProfile {
 public:
  void add(std::uint32_t window_pkts, double delay_ms) {
    double& point_ms = points_ms_[std::min<std::size_t>(window_pkts, kMostPkts)];
    point_ms = point_ms < 0.0 ? delay_ms : kOldShare * point_ms + (1.0 - kOldShare) * delay_ms;
  }

  // Lays a curve through the points below that window and forgets the others. Returns false if they are too few.
  bool fit(std::uint32_t below_pkts) {
    PenalisedSpline::Values windows_pkts, delays_ms;
    for (std::uint32_t w = 1; w <= kMostPkts; ++w) {
      if (w >= below_pkts) points_ms_[w] = kUnknown;
      if (points_ms_[w] < 0.0) continue;
      windows_pkts.push_back(w);
      delays_ms.push_back(points_ms_[w]);
    }
    if (windows_pkts.size() < 2) return false;
    const double most_pkts = windows_pkts.back();
    while (node_pkts_ > 0.0 && most_pkts / node_pkts_ < kLeastNodes) --node_pkts_;
    if (node_pkts_ < 1.0) return false;
    PenalisedSpline curve;
    curve.fit(windows_pkts, delays_ms, static_cast<std::size_t>(most_pkts / node_pkts_));
    for (std::uint32_t w = 0; w <= kMostPkts; ++w) curve_ms_[w] = curve.at(w);
    fitted_ = true;
    return true;
  }

  // Returns the window below the first whose delay is larger; 0 if there is none.
  std::uint32_t window_pkts(double delay_ms) const {
    const std::vector<double>& of = fitted_ ? curve_ms_ : points_ms_;
    for (std::uint32_t w = 2; w <= kMostPkts; ++w)
      if (of[w] > delay_ms) return w - 1;
    return 0;
  }

  // Returns the delay of that window, below 0 if it is not known.
  double delay_ms(double window_pkts) const {
    const std::vector<double>& of = fitted_ ? curve_ms_ : points_ms_;
    return of[static_cast<std::size_t>(std::clamp(window_pkts, 0.0, static_cast<double>(kMostPkts)))];
  }
  bool fitted() const { return fitted_; }

 private:
  static constexpr double kOldShare = 0.875;  // the paper's, of a point's average
  static constexpr double kUnknown = -1.0;
  static constexpr std::size_t kMostPkts = 2048;  // above any window of the simulated TCP; the implementation has 40000
  // A node for so many packets of the largest window; for fewer, and from then on, where that makes less than 5.
  static constexpr double kNodePkts = 15.0, kLeastNodes = 5.0;

  std::vector<double> points_ms_ = std::vector<double>(kMostPkts + 1, kUnknown);
  std::vector<double> curve_ms_ = std::vector<double>(kMostPkts + 1, kUnknown);
  double node_pkts_ = kNodePkts;
  bool fitted_ = false;
};

}  // namespace reinet

#endif
