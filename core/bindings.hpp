// SPDX-License-Identifier: Apache-2.0
// Array types shared by the bindings. Records cross as rows of bytes: DLPack has no structured types.
#ifndef REINET_BINDINGS_HPP
#define REINET_BINDINGS_HPP

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>

#include "core/flow_stats.h"
#include "core/states/state.hpp"

namespace reinet {

template <class T>
using Vector = nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <class T>
using Matrix = nanobind::ndarray<T, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

template <class T>
std::span<T> span_of(const Vector<T>& values) {
  return {values.data(), values.shape(0)};
}

// Copies, because the rows of a caller's array need not be aligned.
template <class Record, class Byte>
Record record_at(const Matrix<Byte>& rows, std::size_t i) {
  Record record;
  std::memcpy(&record, rows.data() + i * sizeof(Record), sizeof(Record));
  return record;
}

template <class Record>
void put_record(const Matrix<std::uint8_t>& rows, std::size_t i, const Record& record) {
  std::memcpy(rows.data() + i * sizeof(Record), &record, sizeof(Record));
}

inline void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

template <class Record, class Byte>
void require_rows_of(const Matrix<Byte>& rows) {
  require(rows.shape(1) == sizeof(Record), "rows of bytes do not have the record's size");
}

// A normaliser's table: a row of doubles for each of the set's inputs.
template <class Double>
void require_table_of(const FeatureSet& set, const Matrix<Double>& rows) {
  require(rows.shape(0) == set.inputs.size() && rows.shape(1) == sizeof(InputStatistics) / sizeof(double),
          "the normaliser's table does not have the feature set's inputs");
}

template <class Double>
NormaliserTable table_from(const FeatureSet& set, const Matrix<Double>& rows) {
  require_table_of(set, rows);
  NormaliserTable table(set.inputs.size());
  if (!table.empty()) std::memcpy(table.data(), rows.data(), table.size() * sizeof(InputStatistics));
  return table;
}

inline void table_to(const NormaliserTable& table, const Matrix<double>& rows) {
  if (!table.empty()) std::memcpy(rows.data(), table.data(), table.size() * sizeof(InputStatistics));
}

}  // namespace reinet

#endif
